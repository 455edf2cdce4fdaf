// Trains a built-in Llama on two ranks and stores a checkpoint that `tessera generate` and `tessera convert` read:
//   train_llama FOLDER && tessera generate FOLDER --prompt-ids 1,4,7 --tokens 5
// The model learns to count: after token t comes token t + 3, modulo 32.
#include <ATen/ATen.h>

#include <cstdio>
#include <filesystem>

#include "tessera/checkpoint/folder.h"
#include "tessera/comm/local/world.h"
#include "tessera/models/registry.h"
#include "tessera/train/trainer.h"
#include "tessera/train/trainer_checkpoint.h"

namespace {

using namespace tessera;

constexpr int kRanks = 2, kSteps = 60;
constexpr std::int64_t kLength = 16, kVocabulary = 32;

// A config.json, as Hugging Face writes it. models::read_model_config reads such a file.
models::ModelConfigPtr make_model() {
  return models::parse_model_config({{"model_type", "llama"},
                                     {"vocab_size", kVocabulary},
                                     {"hidden_size", 32},
                                     {"intermediate_size", 64},
                                     {"num_hidden_layers", 2},
                                     {"num_attention_heads", 4},
                                     {"num_key_value_heads", 2},
                                     {"max_position_embeddings", 64}},
                                    "the model of this example");
}

// A sequence of kLength tokens that counts from `first`, and the token after each of them.
models::Batch make_batch(std::int64_t first) {
  const at::Tensor text = at::remainder(at::arange(kLength + 1) * 3 + first, kVocabulary);
  return {.tokens = text.narrow(0, 0, kLength),
          .targets = text.narrow(0, 1, kLength),
          .layout = {.batch = 1, .seq_len = kLength, .positions = at::arange(kLength)}};
}

double train_and_save(comm::World& world, const models::ModelConfig& model, const std::filesystem::path& folder) {
  train::Trainer trainer(
      world,
      {.step = {.build = [&](const nn::Context& context) { return model.build(context, {.max_positions = kLength}); },
                .layout = nn::rank_layout({.gtp = kRanks})},
       .update = ops::one_rule(ops::make_rule(ops::AdamW{.weight_decay = 0.0}))});
  train::set_initial_values(trainer.runtime(), 7);
  double loss = 0;
  for (int step = 0; step < kSteps; ++step) {
    // Each rank has two sequences in a step. The ranks read different sequences.
    const auto batch = [&](int microbatch) { return make_batch(step * 5 + microbatch * kRanks + world.rank()); };
    loss = trainer.train_step({.microbatches = 2, .tokens = 2 * kRanks * kLength, .batch = batch}, 1e-2).loss;
  }
  // Commands that read the checkpoint build the model from state["model"].
  save_trainer(trainer, folder / checkpoint::step_folder_name(kSteps), kSteps, {{"model", model.to_json()}});
  return loss;
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) return std::fprintf(stderr, "usage: train_llama FOLDER\n"), 2;
  const models::ModelConfigPtr model = make_model();
  double loss = 0;
  comm::run_local(kRanks, {}, [&](comm::World& world) {
    const double own = train_and_save(world, *model, words[1]);
    if (world.rank() == 0) loss = own;
  });
  std::printf("loss after %d steps: %.4f\n", kSteps, loss);
  return loss < 0.5 ? 0 : 1;
}
