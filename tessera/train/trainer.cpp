#include "tessera/train/trainer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/nn/experts/router_loss.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/device/stream_scope.h"

namespace tessera::train {
namespace {

// Returns whether the optimizer reduces amaxes or counts over all ranks.
bool needs_casts(const TrainerOptions& options) {
  const runtime::RuntimeOptions& runtime = options.step.runtime;
  return options.step.expert_bias_rate != 0 || !runtime.wire.is_bf16() || !runtime.products.is_bf16() ||
         (runtime.wire_backward && !runtime.wire_backward->is_bf16());
}

constexpr double kMoreRoom = 1.1;    // factor by which the memory exceeds what a step needed
constexpr int kMaxEvaluations = 10;  // largest number of attempts of one evaluation

struct RoomMemory {
  std::int64_t evaluation = 0;
  double needed = 0;
};

}  // namespace

Trainer::Trainer(comm::World& world, const TrainerOptions& options)
    : options_(options),
      parallel_(shard::make_parallel_groups(world, options.step.layout, needs_casts(options))),
      runtime_(parallel_, options.step.types, options.step.runtime),
      scales_(options.step.products, parallel_.device),
      context_(models::make_context(runtime_.program(), options.step, scales_,
                                    options.step.expert_room > 0 ? &room_ : nullptr)),
      model_(options.step.build(context_)),
      optimizer_(runtime_, options.update, options.step.seed),
      router_bias_(runtime_, model_->router_biases(), options.step.expert_bias_rate),
      finite_check_(runtime_, scales_),
      norm_(runtime_, &finite_check_) {
  const auto host_buffer = [&](std::size_t bytes) {
    return parallel_.is_asynchronous() ? base::Buffer::pinned(bytes) : base::Buffer(bytes);
  };
  for (Pending& pending : steps_) {
    pending.clip = host_buffer(sizeof(ops::Clip));
    pending.number = host_buffer(sizeof(std::int64_t));
  }
  number_ = base::Buffer(sizeof(std::int64_t), parallel_.device);
  if (options.step.expert_room > 0) make_expert_room();
}

void Trainer::make_expert_room() {
  room_memory_ = base::Buffer(sizeof(RoomMemory), parallel_.device);
  room_memory_.fill_zero();
  RoomMemory* memory = room_memory_.as<RoomMemory>().data();
  room_ = {.factor = options_.step.expert_room,
           .stop = norm_.stop_counter(kExpertRoomStop),
           .evaluation = &memory->evaluation,
           .needed = &memory->needed};
}

void Trainer::grow_expert_room() {
  parallel_.compute->synchronize();
  RoomMemory memory;
  base::copy_bytes(&memory, room_memory_.data(), sizeof memory);
  parallel_.world->all_reduce(&memory.needed, 1, quant::DType::fp64, comm::ReduceOp::max).synchronize();
  room_.factor = std::max(room_.factor, kMoreRoom * memory.needed);
  room_memory_.fill_zero();
  graph_ = nullptr;
}

Trainer::~Trainer() {
  if (std::uncaught_exceptions() > exceptions_) {
    runtime_.abandon();
    parallel_.drain();  // lanes must be done, because they write to members that are destroyed before the runtime
    return;
  }
  // The graph must end before the communicators: NCCL cannot destroy a communicator that a graph uses.
  parallel_.compute->record().wait_until_done();
  graph_ = nullptr;
}

// Copies a batch to pinned memory of the pending step. Allocates memory only if the batch is larger than earlier
// batches.
const models::Batch& Trainer::pin(const models::Batch& batch, int microbatch, Pending& pending) {
  const auto index = static_cast<std::size_t>(microbatch);
  if (index >= pending.samples.size()) {
    pending.pinned.resize(index + 1);
    pending.samples.resize(index + 1);
  }
  models::Batch& kept = pending.samples[index];
  kept = batch;
  const std::array<at::Tensor*, 3> tensors{&kept.tokens, &kept.targets, &kept.layout.positions};
  std::size_t bytes = 0;
  for (const at::Tensor* tensor : tensors) bytes += tensor->nbytes();
  if (pending.pinned[index].size() < bytes) pending.pinned[index] = base::Buffer::pinned(bytes);
  std::byte* next = pending.pinned[index].data();
  for (at::Tensor* tensor : tensors) {
    at::Tensor view = ops::view_of(next, {tensor->numel()}, quant::DType::i64, at::kCPU);
    next += tensor->nbytes();
    view.copy_(*tensor);
    *tensor = view;
  }
  return kept;
}

std::vector<at::Tensor> Trainer::run_microbatches(int microbatches, const StepGraph::Batches& batches, double scale) {
  std::vector<at::Tensor> losses;
  nn::PassState pass{
      .context = context_, .id = {}, .random = {.seed = options_.step.seed, .step = number_.as<std::int64_t>().data()}};
  for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
    pass.id.microbatch = microbatch;
    runtime_.program().begin_microbatch(microbatch);
    const nn::Loss loss = model_->forward(batches(microbatch), pass, scale);
    losses.push_back(loss.router.defined() ? at::cat({loss.sum.reshape({1}), loss.router}) : loss.sum);
    loss.objective.backward();
    runtime_.program().end_microbatch(microbatch);
  }
  runtime_.program().end_step();
  return losses;
}

void Trainer::set_number(std::int64_t step, Pending& pending) {
  // The previous copy from this buffer has finished, because the step that used it has finished.
  pending.number.as<std::int64_t>()[0] = step;
  parallel_.kernels().copy(pending.number.data(), number_.data(), sizeof(std::int64_t));
}

void Trainer::update_weights(const std::vector<at::Tensor>& losses) {
  norm_.compute(options_.clip);
  update_scales();
  router_bias_.update(losses, norm_.result());
  optimizer_.update(norm_.result());
}

void Trainer::update_scales() {
  if (scales_.size() == 0) return;
  runtime_.program().reduce_amaxes(scales_.found());
  scales_.update(&norm_.result()->applies, parallel_.compute->stream());
}

const std::vector<at::Tensor>& Trainer::launch_graph(std::span<const models::Batch> batches, double scale) {
  const bool repeats = graph_ && graph_->fits(batches, scale);
  if (!repeats) {
    parallel_.compute->synchronize();
    graph_ = nullptr;  // frees the memory of the old graph before the next capture
    graph_time_.captured();
    graph_ = std::make_unique<StepGraph>(runtime_, std::vector<models::Batch>(batches.begin(), batches.end()), scale,
                                         [&](const StepGraph::Batches& on_device) {
                                           std::vector<at::Tensor> losses =
                                               run_microbatches(static_cast<int>(batches.size()), on_device, scale);
                                           update_weights(losses);
                                           return losses;
                                         });
  }
  graph_->launch(batches, repeats, expected_graph_time());
  ++graph_steps_;
  return graph_->losses();
}

std::chrono::milliseconds Trainer::expected_graph_time() const {
  GraphTime time = graph_time_;
  base::Fence from = counted_from_;
  for (int i = 0; i < pending_; ++i) {
    const Pending& pending = steps_[static_cast<std::size_t>((oldest_ + i) % kMaxPending)];
    if (!pending.end.done()) break;
    time.add(pending.end.seconds_since(from), pending.graph);
    from = pending.end;
  }
  return std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(time.seconds()));
}

StepResult Trainer::train_step(const StepInput& input, double lr) {
  TESSERA_CHECK(pending_ == 0, "cannot run a whole step while {} steps are pending", pending_);
  enqueue_step(input, lr);
  return finish_step();
}

void Trainer::enqueue_step(const StepInput& input, double lr) {
  TESSERA_CHECK(pending_ < kMaxPending, "cannot enqueue a step while {} steps are pending, the maximum", pending_);
  TESSERA_CHECK(pending_ == 0 || !waits_for_scales(), "cannot enqueue a second step before the first amaxes are known");
  const auto start = std::chrono::steady_clock::now();
  const ops::StreamScope scope(parallel_.device, parallel_.compute->stream());
  Pending& pending = steps_[static_cast<std::size_t>((oldest_ + pending_) % kMaxPending)];
  if (pending_ == 0 && !is_repeating_) counted_from_ = parallel_.compute->record_timed();
  pending.tokens = static_cast<double>(input.tokens);
  // If every target of the step is masked, the gradients are zero and the divisor does not matter.
  const double scale = 1.0 / std::max(pending.tokens, 1.0);
  optimizer_.begin_update(lr);
  set_number(input.step, pending);
  runtime_.program().begin_step(schedule::StepKind::train, input.microbatches);
  pending.graph = 0;
  if (options_.graph && !waits_for_scales() && runtime_.graph().can_be_graph()) {
    for (int microbatch = 0; microbatch < input.microbatches; ++microbatch)
      pin(input.batch(microbatch), microbatch, pending);
    const std::span<const models::Batch> batches(pending.samples.data(), static_cast<std::size_t>(input.microbatches));
    pending.summed = pending.losses.start(launch_graph(batches, scale), parallel_, input.microbatches_by_replica);
    pending.graph = graph_time_.graph();
  } else {
    const auto batches = [&](int microbatch) {
      if (!parallel_.is_asynchronous()) return input.batch(microbatch);
      const models::Batch& pinned = pin(input.batch(microbatch), microbatch, pending);
      models::Batch batch = on_device(pinned, parallel_.device);
      batch.early_tokens = pinned.tokens;
      return batch;
    };
    const std::vector<at::Tensor> losses = run_microbatches(input.microbatches, batches, scale);
    pending.summed = pending.losses.start(losses, parallel_, input.microbatches_by_replica);
    update_weights(losses);
  }
  parallel_.kernels().copy(norm_.result(), pending.clip.data(), sizeof(ops::Clip));
  pending.end = parallel_.compute->record_timed();
  pending.step = runtime_.pending();
  pending.host_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  ++pending_;
}

StepResult Trainer::finish_step() {
  TESSERA_CHECK(pending_ > 0, "no step is pending");
  const base::Fence end = steps_[static_cast<std::size_t>(oldest_)].end;
  const int graph = steps_[static_cast<std::size_t>(oldest_)].graph;
  StepResult result = finish_oldest();
  result.seconds = end.seconds_since(counted_from_);
  graph_time_.add(result.seconds, graph);
  is_repeating_ = result.suppressed.has_value();
  if (!is_repeating_) {
    counted_from_ = end;
    return result;
  }
  for (; pending_ > 0; ++result.discarded) finish_oldest();
  if (result.suppressed->counter == kExpertRoomStop) grow_expert_room();
  norm_.clear_suppression();
  return result;
}

// Reads the sums of the router's values, which follow the loss (nn::RouterLoss).
std::optional<RouterResult> Trainer::router_of(const LossSum& sums, double tokens) {
  if (sums.elements() == 1) return std::nullopt;
  RouterResult result{.aux_loss = sums.result(1) / tokens,
                      .z_loss = sums.result(2) / tokens,
                      .dropped = static_cast<std::int64_t>(sums.result(3))};
  for (std::size_t i = 1 + nn::kRouterSums; i < sums.elements(); ++i)
    result.counts.push_back(static_cast<std::int64_t>(sums.result(i)));
  return result;
}

StepResult Trainer::finish_oldest() {
  Pending& pending = steps_[static_cast<std::size_t>(oldest_)];
  const runtime::StepStatistics statistics = runtime_.finish(std::exchange(pending.step, {}));
  std::exchange(pending.summed, {}).synchronize();
  const ops::Clip clip = pending.clip.as<ops::Clip>()[0];
  optimizer_.confirm_update(clip);
  if (clip.applies != 0) scales_.set_known();
  oldest_ = (oldest_ + 1) % kMaxPending;
  --pending_;
  return {.loss = pending.losses.result() / pending.tokens,
          .router = router_of(pending.losses, pending.tokens),
          .grad_norm = clip.norm,
          .skipped = clip.applies == 0 && clip.suppressed == 0,
          .suppressed = norm_.stop_of(clip),
          .statistics = statistics,
          .host_seconds = pending.host_seconds};
}

bool Trainer::was_value_hidden_by_evaluation() {
  if (!finite_check_.is_needed()) return false;
  base::Buffer counter(sizeof(std::int64_t), parallel_.device);
  counter.fill_zero();
  finite_check_.count_after_evaluation(counter.as<std::int64_t>().data());
  parallel_.compute->synchronize();
  std::int64_t found = 0;
  base::copy_bytes(&found, counter.data(), sizeof found);
  parallel_.world->all_reduce(&found, 1, quant::DType::i64).synchronize();
  return found > 0;
}

bool Trainer::had_too_many_rows_in_evaluation() {
  if (room_memory_.size() == 0) return false;
  parallel_.compute->synchronize();
  RoomMemory memory;
  base::copy_bytes(&memory, room_memory_.data(), sizeof memory);
  parallel_.world->all_reduce(&memory.evaluation, 1, quant::DType::i64).synchronize();
  return memory.evaluation > 0;
}

std::optional<double> Trainer::evaluate(const StepInput& input, const BetweenBatches& between) {
  const ops::StreamScope scope(parallel_.device, parallel_.compute->stream());
  const at::NoGradGuard no_gradients;
  scales_.clear_evaluated(parallel_.kernels());
  for (int attempt = 1;; ++attempt) {
    if (!sum_losses(runtime_, context_, *model_, input, evaluated_, between)) return std::nullopt;
    if (!had_too_many_rows_in_evaluation()) break;
    if (attempt == kMaxEvaluations)
      throw Error(
          "evaluation: too many rows of experts in {} attempts in a row, with room for {:.3g} times the even load",
          attempt, room_.factor);
    grow_expert_room();
  }
  if (was_value_hidden_by_evaluation()) return std::numeric_limits<double>::quiet_NaN();
  return evaluated_.result() / static_cast<double>(input.tokens);
}

}  // namespace tessera::train
