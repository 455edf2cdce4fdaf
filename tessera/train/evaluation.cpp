#include "tessera/train/evaluation.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tessera/base/ceil_div.h"
#include "tessera/ops/aten_types.h"

namespace tessera::train {
namespace {

// The largest number of microbatches of a batch, which is a step of the runtime. The limit keeps trace and schedule
// small, and the time until a stop request is read.
constexpr int kEvaluatedTogether = 16;

// Returns the largest number of batches of a rank.
int batches_of(const StepInput& input) {
  int most = input.microbatches;
  for (const int of_replica : input.microbatches_by_replica) most = std::max(most, of_replica);
  return base::ceil_div(most, kEvaluatedTogether);
}

}  // namespace

models::Batch on_device(models::Batch batch, base::Device device) {
  if (device.kind == base::DeviceKind::cpu) return batch;
  const at::Device target = ops::to_device(device);
  for (at::Tensor* tensor : {&batch.tokens, &batch.targets, &batch.layout.positions})
    *tensor = tensor->to(target, /*non_blocking=*/true);
  return batch;
}

bool sum_losses(runtime::Runtime& runtime, const nn::Context& context, models::Model& model, const StepInput& input,
                LossSum& losses, const BetweenBatches& between) {
  shard::ParallelGroups& parallel = runtime.parallel();
  std::vector<at::Tensor> of_microbatches;
  base::Fence previous, last;  // the ends of the last two batches
  bool is_whole = true;
  const int batches = batches_of(input);
  for (int batch = 0; batch < batches && is_whole; ++batch) {
    // The ranks of a smaller replica have more microbatches, so other ranks may have no microbatch in the last batches.
    const int first = std::min(batch * kEvaluatedTogether, input.microbatches);
    const int end = std::min(first + kEvaluatedTogether, input.microbatches);
    if (first < end) {
      runtime.program().begin_step(schedule::StepKind::evaluate, end - first);
      for (int microbatch = 0; microbatch < end - first; ++microbatch) {
        runtime.program().begin_microbatch(microbatch);
        const models::Batch samples = on_device(input.batch(first + microbatch), parallel.device);
        of_microbatches.push_back(model.forward(samples, {.context = context, .id = {microbatch}}, 0).sum);
        runtime.program().end_microbatch(microbatch);
      }
      runtime.program().end_step();
    }
    if (!between || batch + 1 == batches) continue;
    previous = std::exchange(last, parallel.compute->record());
    previous.synchronize();
    is_whole = between(static_cast<double>(batch + 1) / batches);
  }
  if (is_whole) parallel.compute->wait(losses.start(of_microbatches, parallel, input.microbatches_by_replica));
  runtime.finish(runtime.pending());
  return is_whole;
}

}  // namespace tessera::train
