// One rank's part of a run: the model, its runtime and its optimizer, and what a step does with them. Knows nothing of
// files of samples, flags or metrics: the loop feeds it.
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
#include "tessera/ops/device/cached_memory.h"
#include "tessera/runtime/runtime.h"
#include "tessera/train/gradient_norm.h"
#include "tessera/train/loss_sum.h"
#include "tessera/train/optimizer.h"
#include "tessera/train/step_graph.h"

namespace tessera::train {

// A mesh that is not the plain one of dense weights: with dead places, or with more domains.
struct RankLayout {
  mesh::Mesh mesh;
  std::vector<shard::Domain> domains;                              // the first is that of samples and activations
  std::function<int(const shard::ParameterSpec& spec)> domain_of;  // number of its domain; null: the first
};

struct TrainerOptions {
  models::BuildModel model;
  int tp = 1, gtp = 1, dp = 1;      // of nn::dense_mesh
  std::optional<RankLayout> ranks;  // instead of it
  shard::ParameterTypes types;
  bool sequence_parallel = false;
  nn::TokenSplit split;  // of tokens over tp, under sequence parallelism
  nn::BlockRecompute recompute;
  ops::AdamW adamw;
  double clip = 1.0;
  CastOrder cast_order = CastOrder::fused;
  runtime::RuntimeOptions runtime;
  nn::ProductOptions products;  // of those that runtime.products puts into a number format
  bool graph = false;           // GPUs: steps that follow their schedule are launches of a CUDA graph (step_graph.h)
};

// A step's samples as this rank sees them.
struct StepInput {
  int microbatches = 1;                                // the same on every rank
  std::int64_t tokens = 0;                             // unmasked targets of the whole step, over all ranks
  std::function<models::Batch(int microbatch)> batch;  // this rank's block of a microbatch
};

struct StepResult {
  double loss = 0;       // mean over the step's tokens, before the update; the same on every rank
  double grad_norm = 0;  // before clipping; the same on every rank
  bool skipped = false;  // the norm was not finite: nothing was updated, on any rank
  // A stop counter was above 0, on some rank: nothing was updated on any rank, by this step or by those that were
  // pending behind it. The step is to be enqueued again, then those behind it.
  std::optional<Stop> suppressed;
  int discarded = 0;  // with suppressed: how many were pending behind it
  runtime::StepStatistics statistics;
  // From the end of the step before to its own, as compute came to them; where none was pending when it was enqueued,
  // from its beginning. Attempts that were suppressed or discarded enter the time of the step that is repeated.
  double seconds = 0;
  double host_seconds = 0;  // of enqueueing it; on a CPU, the step
};

class Trainer {
 public:
  // Collective over the world: makes the groups. `world` outlives the trainer.
  Trainer(comm::World& world, const TrainerOptions& options);
  // Waits for compute; gives up what is under way where an exception is the reason: a device would not give memory back
  // before.
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Steps that are enqueued and not finished, at most.
  static constexpr int kMostPending = Optimizer::kMostUnseen;

  // Forward and backward of every microbatch, reduction, norm, clipping, AdamW. Collective. Only tests call it.
  StepResult train_step(const StepInput& input, double lr);
  // The same in two halves, so that a GPU has its next step while the host waits for the last. Enqueues a step; waits
  // for no device while steps of its kind have a schedule and, with options.graph, a graph that fits. On a CPU it is
  // done then. Collective. Errors: kMostPending steps are pending.
  void enqueue_step(const StepInput& input, double lr);
  // Waits for the oldest step that is pending, and for no later one. Where it was suppressed it waits for those behind
  // it too, which are discarded: none is pending then, updates apply again, and all that steps advance is as before the
  // suppressed one. Collective. Errors: none is pending; whatever went wrong in it, on other ranks too.
  StepResult finish_step();
  int pending_steps() const { return pending_; }
  std::int64_t graph_steps() const { return graph_steps_; }  // that were launches of a graph
  // How many steps a loop may leave pending when it goes on to the next, so that its device does not stand still.
  int steps_ahead() const { return parallel_.is_asynchronous() && !waits_for_scales() ? 1 : 0; }

  // Mean loss over the input's tokens; changes nothing. NaN where a number format hid a value that is not finite.
  // Collective.
  double evaluate(const StepInput& input);

  runtime::Runtime& runtime() { return runtime_; }
  Optimizer& optimizer() { return optimizer_; }
  shard::ParallelGroups& parallel() { return parallel_; }
  nn::DelayedScales& scales() { return scales_; }
  // GradientNorm's: a counter that suppresses the step in which it is above 0.
  std::int64_t* stop_counter(std::string name) { return norm_.stop_counter(std::move(name)); }

 private:
  // What the host has not seen of a step.
  struct Pending {
    double tokens = 1;
    LossSum losses;
    base::Fence summed;  // the losses
    base::Buffer clip;   // ops::Clip; pinned for a GPU
    // By microbatch, in pinned memory: from where a GPU takes them.
    std::vector<base::Buffer> pinned;
    std::vector<models::Batch> samples;
    runtime::PendingStep step;
    base::Fence end;  // timed: compute has come to the step's end
    double host_seconds = 0;
  };
  // What the host has of a microbatch, where a GPU can read it while the host goes on.
  static const models::Batch& pin(const models::Batch& batch, int microbatch, Pending& pending);
  models::Batch on_device(models::Batch batch) const;
  // To the end of the step. Returns each microbatch's loss.
  std::vector<at::Tensor> run_microbatches(int microbatches, const StepGraph::Batches& batches, double scale);
  StepResult finish_oldest();
  void update_weights();
  void update_scales();
  // Whether an evaluation hid a value that is not finite, on any rank. Collective.
  bool evaluation_hid_a_value();
  // Whether delayed scaling has seen no step yet. Then the host must see whether a step counts before it enqueues the
  // next.
  bool waits_for_scales() const { return scales_.size() > 0 && !scales_.are_known(); }
  // The longest time of the steps that are known to have ended.
  std::chrono::milliseconds longest_step() const;
  // The step that has begun, as a launch of a graph, made where there is none that fits. Returns its losses.
  const std::vector<at::Tensor>& launch_graph(std::span<const models::Batch> batches, double scale);

  // Lanes use these: they end first.
  std::array<Pending, kMostPending> steps_;
  std::unique_ptr<StepGraph> graph_;  // null: none yet
  std::int64_t graph_steps_ = 0;
  LossSum evaluated_;
  int oldest_ = 0, pending_ = 0;
  base::Fence counted_from_;                           // timed: where the time of the oldest pending step begins
  double longest_seconds_ = 0;                         // of the steps that finish_step returned
  bool is_repeating_ = false;                          // the last step finished was suppressed
  const int exceptions_ = std::uncaught_exceptions();  // under way when this was made

  TrainerOptions options_;
  shard::ParallelGroups parallel_;
  ops::CachedMemoryScope cached_memory_{parallel_.device};  // ends after all tensors
  runtime::Runtime runtime_;
  nn::DelayedScales scales_;
  nn::Context context_;
  std::unique_ptr<models::Model> model_;
  Optimizer optimizer_;
  FiniteCheck finite_check_;
  GradientNorm norm_;
};

}  // namespace tessera::train
