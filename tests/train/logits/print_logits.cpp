// print_logits MODEL CHECKPOINT TP TOKEN...: prints a dense decoder's logits for one sequence in fp64 over TP ranks,
// one line per token. The weights come from the checkpoint. Used by test_architectures.py.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <vector>

#include "tessera/checkpoint/reader.h"
#include "tessera/comm/local/world.h"
#include "tessera/models/decoder/decoder.h"
#include "tessera/models/registry.h"
#include "tessera/nn/weight.h"
#include "tessera/ops/gemm/gemm.h"
#include "tessera/train/trainer.h"
#include "tessera/train/trainer_checkpoint.h"

namespace {

using namespace tessera;

models::Batch batch_of(const std::vector<std::int64_t>& tokens) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  models::Batch batch{.tokens = at::tensor(tokens), .targets = at::tensor(tokens)};
  batch.layout = {.batch = 1, .seq_len = count, .positions = at::arange(count, at::kLong), .cu_seqlens = {}};
  return batch;
}

// Writes this rank's columns of logits [tokens, vocabulary].
void write_logits(comm::World& world, const models::ModelConfig& config, const char* checkpoint,
                  const std::vector<std::int64_t>& tokens, std::vector<std::vector<double>>& logits) {
  const nn::Context* context = nullptr;
  models::Decoder* decoder = nullptr;
  train::TrainerOptions options;
  options.step.build = [&](const nn::Context& made) {
    context = &made;
    std::unique_ptr<models::Model> model =
        config.build(made, {.max_positions = static_cast<std::int64_t>(tokens.size())});
    decoder = &dynamic_cast<models::Decoder&>(*model);
    return model;
  };
  options.step.layout = nn::rank_layout({.tp = world.size()});
  options.step.types = {.model = quant::DType::fp64, .accumulator = quant::DType::fp64, .wire = quant::DType::fp64};
  train::Trainer trainer(world, options);
  load_trainer(trainer, checkpoint::CheckpointReader(checkpoint));

  const at::NoGradGuard no_gradients;
  runtime::Runtime& runtime = trainer.runtime();
  runtime.program().begin_step(schedule::StepKind::evaluate, 1);
  runtime.program().begin_microbatch(0);
  const models::Batch batch = batch_of(tokens);
  const nn::PassState pass{.context = *context, .id = {0}};
  const at::Tensor hidden = decoder->hidden(
      decoder->run(decoder->begin(batch, pass), {0, decoder->blocks()}, batch, pass, nullptr), batch, pass);
  {
    const nn::ConsumedWeight weight(pass, decoder->output().weight);
    const at::Tensor part = ops::gemm_fprop(hidden, weight.tensor()).contiguous();
    const double* values = part.const_data_ptr<double>();
    const ops::IdRanges& ids = decoder->output().part;
    for (std::vector<double>& row : logits)
      for (std::int64_t id = 0; id < config.sizes().vocab_size; ++id)
        if (const std::int64_t at = ids.row_of(id); at >= 0)
          row[static_cast<std::size_t>(id)] = values[(&row - logits.data()) * part.size(1) + at];
  }
  runtime.program().end_microbatch(0);
  runtime.program().end_step();
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 5) throw InputError("expected MODEL CHECKPOINT TP TOKEN...");
  const models::ModelConfigPtr config = models::read_model_config(argv[1]);
  std::vector<std::int64_t> tokens;
  for (int i = 4; i < argc; ++i) tokens.push_back(std::atoll(argv[i]));
  std::vector<std::vector<double>> logits(tokens.size(),
                                          std::vector<double>(static_cast<std::size_t>(config->sizes().vocab_size)));
  comm::run_local(std::atoi(argv[3]), {},
                  [&](comm::World& world) { write_logits(world, *config, argv[2], tokens, logits); });
  for (const std::vector<double>& row : logits) fmt::print("{:.17g}\n", fmt::join(row, " "));
  std::fflush(nullptr);
  std::_Exit(0);  // as torch_main.cpp
} catch (const std::exception& error) {
  fmt::print(stderr, "print_logits: {}\n", error.what());
  return 1;
}
