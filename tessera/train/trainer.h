// One rank's part of a run: the model, its runtime and its optimizer, and the training step. A trainer does not depend
// on sample files, flags and metrics, which the training loop handles.
#pragma once
#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/models/model.h"
#include "tessera/nn/context.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/ops/device/cached_memory.h"
#include "tessera/runtime/runtime.h"
#include "tessera/train/gradient_norm.h"
#include "tessera/train/loss_sum.h"
#include "tessera/train/optimizer.h"
#include "tessera/train/step_graph.h"
#include "tessera/train/step_input.h"

namespace tessera::train {

struct TrainerOptions {
  models::BuildModel model;
  shard::RankLayout layout = nn::rank_layout({});
  shard::ParameterTypes types;
  bool sequence_parallel = false;
  nn::TokenSplit split;  // shares of tokens by tp rank, under sequence parallelism
  nn::BlockRecompute recompute;
  ops::AdamW adamw;
  double clip = 1.0;
  CastOrder cast_order = CastOrder::fused;
  runtime::RuntimeOptions runtime;
  nn::ProductOptions products;  // options of the products that runtime.products puts into a number format
  // On GPUs: whether steps that follow their schedule run as launches of a CUDA graph (step_graph.h).
  bool graph = false;
};

// The results of the routers of a model with experts.
struct RouterResult {
  // The losses include their coefficients and are weighted by the tokens of each block.
  double aux_loss = 0, z_loss = 0;
  std::vector<std::int64_t> counts = {};  // by sparse layer and expert: how often the expert was chosen
};

struct StepResult {
  // Mean over the step's tokens, before the update, without the router's losses; the same on every rank.
  double loss = 0;
  std::optional<RouterResult> router;  // result of a model with experts
  double grad_norm = 0;                // norm before clipping; the same on every rank
  bool skipped = false;                // true: no rank updated anything, because the norm was not finite
  // Set if a stop counter was above 0 on some rank. If set, neither this step nor the steps pending behind it updated
  // anything, on any rank. The caller enqueues this step again, then the discarded steps.
  std::optional<Stop> suppressed;
  int discarded = 0;  // if suppressed: number of steps that were pending behind it
  runtime::StepStatistics statistics;
  // Time on compute's lane from the end of the previous step to the end of this step. If no step was pending at the
  // enqueue, the time starts with this step. Includes suppressed and discarded attempts of this step.
  double seconds = 0;
  double host_seconds = 0;  // time to enqueue the step; on a CPU, to run it
};

class Trainer {
 public:
  // Collective over the world: creates the groups. `world` must outlive the trainer.
  Trainer(comm::World& world, const TrainerOptions& options);
  // Waits for compute. If an exception is propagating, cancels pending work first, since a device does not free memory
  // that is in use.
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // The most steps that are enqueued and not finished.
  static constexpr int kMaxPending = Optimizer::kMaxUnconfirmed;

  // Runs one step: forward and backward of every microbatch, reduction, norm, clipping, AdamW. Collective. Only tests
  // call it.
  StepResult train_step(const StepInput& input, double lr);
  // The first half of train_step: enqueues a step. A GPU can then start the next step while the host waits for the
  // previous one. Does not wait for the device if steps of this kind have a schedule and, with options.graph, a graph
  // that fits. On a CPU the step is complete on return. Collective. Throws Error if kMaxPending steps are pending.
  void enqueue_step(const StepInput& input, double lr);
  // The second half of train_step: waits for the oldest pending step, but not for later ones. If that step was
  // suppressed, also waits for the steps behind it and discards them. After a suppressed step, no step is pending,
  // updates apply again, and the state is as before that step. Collective. Throws Error if no step is pending, and any
  // error that occurred in the step, also on other ranks.
  StepResult finish_step();
  int pending_steps() const { return pending_; }
  std::int64_t graph_steps() const { return graph_steps_; }  // steps that were launches of a graph
  // Returns the number of steps that a loop may leave pending when it continues, so that the device stays busy.
  int steps_ahead() const { return parallel_.is_asynchronous() && !waits_for_scales() ? 1 : 0; }

  // Returns the mean loss over the input's tokens, without changing any state. Returns NaN if a number format hid a
  // non-finite value. Collective.
  double evaluate(const StepInput& input);

  runtime::Runtime& runtime() { return runtime_; }
  Optimizer& optimizer() { return optimizer_; }
  shard::ParallelGroups& parallel() { return parallel_; }
  nn::DelayedScales& scales() { return scales_; }
  // See GradientNorm::stop_counter: a counter above 0 suppresses its step.
  std::int64_t* stop_counter(std::string name) { return norm_.stop_counter(std::move(name)); }

 private:
  // The results of a step that the host has not read yet.
  struct Pending {
    double tokens = 1;
    LossSum losses;
    base::Fence summed;  // done when the sum of losses is complete
    base::Buffer clip;   // ops::Clip; pinned for a GPU
    // By microbatch: the samples in pinned memory, which a GPU reads.
    std::vector<base::Buffer> pinned;
    std::vector<models::Batch> samples;
    runtime::PendingStep step;
    base::Fence end;  // timed: compute has finished the step
    double host_seconds = 0;
  };
  // Copies a microbatch to pinned memory, which a GPU can read while the host continues.
  static const models::Batch& pin(const models::Batch& batch, int microbatch, Pending& pending);
  // Runs the step up to end_step. Returns each microbatch's loss.
  std::vector<at::Tensor> run_microbatches(int microbatches, const StepGraph::Batches& batches, double scale);
  StepResult finish_oldest();
  static std::optional<RouterResult> router_of(const LossSum& sums, double tokens);
  void update_weights();
  void update_scales();
  // Returns whether an evaluation hid a non-finite value on any rank. Collective.
  bool was_value_hidden_by_evaluation();
  // Returns whether delayed scaling has no amaxes of a step yet. If true, the host must read whether a step counts
  // before it enqueues the next step.
  bool waits_for_scales() const { return scales_.size() > 0 && !scales_.are_known(); }
  // Returns the longest time among the steps that have ended so far.
  std::chrono::milliseconds longest_step() const;
  // Launches the current step as a graph; captures a new graph if the current one does not fit. Returns the losses.
  const std::vector<at::Tensor>& launch_graph(std::span<const models::Batch> batches, double scale);

  // Lanes use the members below, so lanes must end first.
  std::array<Pending, kMaxPending> steps_;
  std::unique_ptr<StepGraph> graph_;  // null: not captured yet
  std::int64_t graph_steps_ = 0;
  LossSum evaluated_;
  int oldest_ = 0, pending_ = 0;
  base::Fence counted_from_;                           // timed: start of the oldest pending step's time
  double longest_seconds_ = 0;                         // among the steps that finish_step returned
  bool is_repeating_ = false;                          // whether the last step that finish_step returned was suppressed
  const int exceptions_ = std::uncaught_exceptions();  // number of exceptions in flight when this object was made

  TrainerOptions options_;
  shard::ParallelGroups parallel_;
  ops::CachedMemoryScope cached_memory_{parallel_.device};  // destroyed after all tensors
  runtime::Runtime runtime_;
  nn::DelayedScales scales_;
  nn::Context context_;
  std::unique_ptr<models::Model> model_;
  Optimizer optimizer_;
  FiniteCheck finite_check_;
  GradientNorm norm_;
};

}  // namespace tessera::train
