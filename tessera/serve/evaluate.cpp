#include "tessera/serve/evaluate.h"
#include "tessera/base/atomic_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/data/data.h"
#include "tessera/hub/run_directory.h"
#include "tessera/hub/tokenizer/tokenizer_files.h"
#include "tessera/hub/tokenizer/tokenizer_warnings.h"
#include "tessera/serve/frozen_run.h"
#include "tessera/train/batches.h"

namespace tessera::serve {
namespace {

// The inputs that a rank checks before it builds the model.
struct EvaluationInputs {
  StoredModel stored;
  settings::ResolvedRun run;
  std::unique_ptr<const data::TrainingData> data;
};

EvaluationInputs read_inputs(const EvaluateCommand& command, const comm::World& world) {
  StoredModel stored = find_stored_model(command.path, world.rank(), world.size());
  settings::ResolvedRun run = frozen_run(command.config, stored, world);
  EvaluationInputs inputs{.stored = std::move(stored), .run = std::move(run), .data = {}};
  inputs.data = std::make_unique<data::TrainingData>(
      data::TrainingDataOptions{.blend = {command.data},
                                .seq_len = inputs.run->seq_len,
                                .vocab_size = inputs.stored.model->sizes().vocab_size,
                                .mask_documents = inputs.run->mask_documents,
                                .uses_weights = false});
  inputs.data->check_vocabulary(world.rank(), world.size());
  inputs.data->check_targets();
  return inputs;
}

// An evaluation may take minutes, so a person at a terminal sees its size first.
void print_size(std::int64_t samples, std::int64_t seq_len) {
  if (::isatty(STDERR_FILENO) == 1) fmt::print(stderr, "evaluating {} samples of {} tokens\n", samples, seq_len);
}

void print_warning(const std::string& warning) {
  fmt::print(stderr, "tessera: warning: {}\n", warning);
}

void print_warnings(const EvaluateCommand& command, const StoredModel& stored) {
  const hub::ReadingModel model{.name = command.path,
                                .vocab_size = stored.model->sizes().vocab_size,
                                .tokenizer = hub::tokenizer_of(stored.folder),
                                .begin = stored.begin_ids};
  std::ranges::for_each(stored.warnings, print_warning);
  std::ranges::for_each(hub::tokenizer_warnings({{.flag = "--data", .blend = {command.data}}}, model), print_warning);
}

void print_result(double loss, const train::StepInput& input, std::int64_t samples, bool json) {
  if (std::isnan(loss)) loss = std::abs(loss);  // fmt prints the sign of a NaN
  const double perplexity = std::exp(loss);
  if (json) {
    const nlohmann::ordered_json report = {
        {"loss", loss}, {"perplexity", perplexity}, {"tokens", input.tokens}, {"samples", samples}};
    fmt::print("{}\n", base::finite_json(report).dump());
    return;
  }
  fmt::print("loss {:.6f}, perplexity {:.4f}: {} tokens in {} samples\n", loss, perplexity, input.tokens, samples);
}

}  // namespace

int evaluate(const EvaluateCommand& command) {
  if (command.data.empty()) throw InputError("--data: is empty, expected the prefix of PREFIX.bin and PREFIX.idx");
  return run_on_ranks(command.config, [&](comm::World& world, comm::Communicator& all) {
    std::optional<EvaluationInputs> read;
    together(all, [&] { read = read_inputs(command, world); });
    const EvaluationInputs& inputs = read.value();
    require_same_inputs(all, inputs.stored, {{"the data", inputs.data->fingerprint()}});
    const auto model = make_frozen_model(world, inputs.run, inputs.stored);
    const train::EvaluationShape shape{.micro_batch = inputs.run->micro_batch, .seq_len = inputs.run->seq_len};
    const train::StepInput input = train::evaluation_input(*inputs.data, shape, model->parallel());
    if (world.rank() == 0) print_warnings(command, inputs.stored);
    if (world.rank() == 0) print_size(inputs.data->num_samples(), inputs.run->seq_len);
    const double loss = model->evaluate(input);
    if (world.rank() == 0) print_result(loss, input, inputs.data->num_samples(), command.json);
  });
}

}  // namespace tessera::serve
