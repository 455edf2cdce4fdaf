#include "tessera/train/trainer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <chrono>

#include "tessera/ops/convert.h"
#include "tessera/ops/stream_scope.h"

namespace tessera::train {
namespace {

// Microbatches of one step of an evaluation: its trace and its schedule stay small whatever there is to evaluate.
constexpr int kEvaluatedTogether = 64;

}  // namespace

Trainer::Trainer(comm::World& world, const TrainerOptions& options)
    : options_(options),
      parallel_(shard::make_parallel(world, options.tp, options.gtp, options.dp)),
      runtime_(parallel_, options.types, options.runtime),
      context_{.runtime = runtime_,
               .sequence_parallel = options.sequence_parallel && options.tp > 1,
               .recompute = options.recompute},
      model_(options.model, context_, options.seq_len, options.embedding),
      optimizer_(runtime_, options.adamw),
      norm_(runtime_) {}

// Tensors of a batch are made on the CPU.
nn::Batch Trainer::on_device(nn::Batch batch) const {
  if (parallel_.device.kind == base::DeviceKind::cpu) return batch;
  const at::Device device = ops::to_device(parallel_.device);
  for (at::Tensor* tensor : {&batch.tokens, &batch.targets, &batch.layout.positions})
    *tensor = tensor->pin_memory().to(device, /*non_blocking=*/true);
  return batch;
}

StepResult Trainer::train_step(const StepInput& input, double lr) {
  const auto start = std::chrono::steady_clock::now();
  const ops::StreamScope scope(parallel_.device, parallel_.compute->stream());
  // Without an unmasked target in the whole step there is nothing to divide: losses and gradients are zero.
  const auto tokens = static_cast<double>(std::max<std::int64_t>(input.tokens, 1));
  std::vector<at::Tensor> losses;
  runtime_.begin_step(shard::StepKind::train, input.microbatches);
  for (int microbatch = 0; microbatch < input.microbatches; ++microbatch) {
    runtime_.begin_microbatch();
    const nn::Loss loss = model_.forward(on_device(input.batch(microbatch)), 1.0 / tokens);
    losses.push_back(loss.sum);
    loss.objective.backward();
    runtime_.end_microbatch();
  }
  runtime_.end_step();

  norm_.compute(options_.clip);
  if (const ops::Clip* clip = norm_.on_device()) optimizer_.update_on_device(lr, clip);
  const std::chrono::duration<double> enqueued = std::chrono::steady_clock::now() - start;
  const ops::Clip clip = norm_.result();
  if (!norm_.on_device()) optimizer_.update(lr, clip);
  StepResult result{.loss = sum_losses(losses) / tokens,
                    .grad_norm = clip.norm,
                    .skipped = clip.finite == 0,
                    .host_seconds = enqueued.count()};
  if (norm_.on_device() && result.skipped) optimizer_.take_back();
  result.statistics = runtime_.statistics();
  return result;
}

double Trainer::evaluate(const StepInput& input) {
  const ops::StreamScope scope(parallel_.device, parallel_.compute->stream());
  const at::NoGradGuard no_gradients;
  std::vector<at::Tensor> losses;
  for (int first = 0; first < input.microbatches; first += kEvaluatedTogether) {
    const int end = std::min(first + kEvaluatedTogether, input.microbatches);
    runtime_.begin_step(shard::StepKind::evaluate, end - first);
    for (int microbatch = first; microbatch < end; ++microbatch) {
      runtime_.begin_microbatch();
      losses.push_back(model_.forward(on_device(input.batch(microbatch)), 0).sum);
      runtime_.end_microbatch();
    }
    runtime_.end_step();
  }
  return sum_losses(losses) / static_cast<double>(std::max<std::int64_t>(input.tokens, 1));
}

// Block k of a replica was microbatch k / G of gtp rank k mod G: replicas in order, their blocks in order, in fp64.
double Trainer::sum_losses(const std::vector<at::Tensor>& losses) {
  std::vector<double> own(losses.size());
  if (!losses.empty()) {
    const at::Tensor together = at::stack(losses).cpu();  // waits for a GPU
    std::copy_n(together.const_data_ptr<double>(), own.size(), own.begin());
  }
  const auto gtp = static_cast<std::size_t>(parallel_.gtp_size()), dp = static_cast<std::size_t>(parallel_.dp_size());
  const std::size_t microbatches = own.size();
  std::vector<double> all(gtp * dp * microbatches);
  const auto counts = comm::equal_counts(static_cast<int>(gtp * dp), static_cast<std::int64_t>(microbatches));
  parallel_.data->all_gather(own.data(), all.data(), counts, base::DType::fp64).synchronize();
  double sum = 0;
  for (std::size_t replica = 0; replica < dp; ++replica)
    for (std::size_t microbatch = 0; microbatch < microbatches; ++microbatch)
      for (std::size_t rank = 0; rank < gtp; ++rank) sum += all[(replica * gtp + rank) * microbatches + microbatch];
  return sum;
}

}  // namespace tessera::train
