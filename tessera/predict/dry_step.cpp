#include "tessera/predict/dry_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "tessera/runtime/dry_run.h"
#include "tessera/schedule/buckets.h"
#include "tessera/shard/encoded.h"

namespace tessera::predict {
namespace {

using schedule::ParameterId;

models::Batch dry_batch(std::int64_t sequences, std::int64_t seq_len) {
  const at::TensorOptions ids = at::TensorOptions().device(at::kMeta).dtype(at::kLong);
  const std::int64_t tokens = sequences * seq_len;
  models::Batch batch{.tokens = at::empty({tokens}, ids), .targets = at::empty({tokens}, ids)};
  batch.layout = {.batch = sequences, .seq_len = seq_len, .positions = at::empty({tokens}, ids), .cu_seqlens = {}};
  return batch;
}

// The messages of amaxes and the publishes of an update (train/optimizer.h).
void update_weights(runtime::DryRun& program, nn::DelayedScales& scales, const std::vector<ParameterId>& copies) {
  if (scales.size() > 0) program.reduce_amaxes(scales.found());
  std::vector<ParameterId> order = schedule::order_of_first_uses(program.trace(), program.weights());
  std::erase_if(order, [&](ParameterId id) { return !program.spec(id).trainable; });
  const auto elements = [&](ParameterId id) { return program.spec(id).compute.shape.elements(); };
  for (const std::vector<ParameterId>& bucket : schedule::optimizer_buckets(order, elements)) {
    std::vector<ParameterId> cast = bucket;
    for (const ParameterId id : bucket)
      if (const ParameterId copy = copies[static_cast<std::size_t>(id)]; copy != schedule::kNoParameter)
        cast.push_back(copy);
    const auto encoded =
        std::ranges::count_if(cast, [&](ParameterId id) { return program.spec(id).encoding.has_value(); });
    const bool has_whole = std::ranges::any_of(cast, [&](ParameterId id) {
      const std::optional<quant::Encoding>& encoding = program.spec(id).encoding;
      return encoding && shard::has_tensor_scale(*encoding);
    });
    std::vector<float> amaxes(static_cast<std::size_t>(encoded));
    if (has_whole) program.reduce_amaxes(amaxes);
    program.publish(bucket);
  }
}

}  // namespace

DryStep dry_step(const DryOptions& options) {
  const bool trains = options.kind == schedule::StepKind::train;
  runtime::DryRun program(options.mesh, options.domains, options.rank, options.types, options.runtime);
  nn::DelayedScales scales(options.products, program.device());
  nn::Context context{.program = program,
                      .sequence_parallel = options.sequence_parallel && program.group_size() > 1,
                      .recompute = options.recompute,
                      .products = options.products,
                      .scales = options.products.scaling == nn::Fp8Scaling::delayed ? &scales : nullptr,
                      .split = options.split};
  const std::unique_ptr<models::Model> model = options.model(context);
  scales.set_known();

  DryStep step;
  program.begin_step(options.kind, 1);
  {
    const ops::WorkScope scope([&](const ops::Work& work) {
      step.work.resize(program.trace().size() + 1);
      step.work.back().push_back(work);
    });
    const at::AutoGradMode gradients(trains);
    program.begin_microbatch();
    const nn::Loss loss = model->forward(dry_batch(options.sequences, options.seq_len), trains ? 1.0 : 0.0);
    if (trains) loss.objective.backward();
    program.end_microbatch();
    program.end_step();
  }
  step.microbatch = program.trace();
  step.work.resize(step.microbatch.size() + 1);
  step.flops = program.flops();
  step.activations = program.activations();
  step.parameters = program.specs();
  step.copies = program.copies();
  if (!trains) return step;
  update_weights(program, scales, step.copies);
  step.optimizer.assign(program.trace().begin() + static_cast<std::ptrdiff_t>(step.microbatch.size()),
                        program.trace().end());
  return step;
}

schedule::Trace DryStep::trace(int microbatches) const {
  schedule::Trace whole;
  whole.reserve(microbatch.size() * static_cast<std::size_t>(microbatches) + optimizer.size());
  for (int number = 0; number < microbatches; ++number) {
    whole.insert(whole.end(), microbatch.begin(), microbatch.end());
    for (auto event = whole.end() - static_cast<std::ptrdiff_t>(microbatch.size()); event != whole.end(); ++event)
      event->microbatch = number;
  }
  whole.insert(whole.end(), optimizer.begin(), optimizer.end());
  return whole;
}

}  // namespace tessera::predict
