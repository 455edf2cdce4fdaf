#include "tessera/train/evaluation.h"

#include <algorithm>
#include <vector>

#include "tessera/ops/aten_types.h"

namespace tessera::train {
namespace {

// The largest number of microbatches of a step of an evaluation. The limit keeps trace and schedule small.
constexpr int kEvaluatedTogether = 64;

}  // namespace

models::Batch on_device(models::Batch batch, base::Device device) {
  if (device.kind == base::DeviceKind::cpu) return batch;
  const at::Device target = ops::to_device(device);
  for (at::Tensor* tensor : {&batch.tokens, &batch.targets, &batch.layout.positions})
    *tensor = tensor->to(target, /*non_blocking=*/true);
  return batch;
}

void sum_losses(runtime::Runtime& runtime, const nn::Context& context, models::Model& model, const StepInput& input,
                LossSum& losses) {
  shard::ParallelGroups& parallel = runtime.parallel();
  std::vector<at::Tensor> of_microbatches;
  for (int first = 0; first < input.microbatches; first += kEvaluatedTogether) {
    const int end = std::min(first + kEvaluatedTogether, input.microbatches);
    runtime.program().begin_step(schedule::StepKind::evaluate, end - first);
    for (int microbatch = 0; microbatch < end - first; ++microbatch) {
      runtime.program().begin_microbatch(microbatch);
      const models::Batch batch = on_device(input.batch(first + microbatch), parallel.device);
      of_microbatches.push_back(model.forward(batch, {.context = context, .id = {microbatch}}, 0).sum);
      runtime.program().end_microbatch(microbatch);
    }
    runtime.program().end_step();
  }
  parallel.compute->wait(losses.start(of_microbatches, parallel, input.microbatches_by_replica));
  runtime.finish(runtime.pending());
}

}  // namespace tessera::train
