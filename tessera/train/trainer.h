// One rank's part of a run: the model, its runtime and its optimizer, and the training step. A trainer does not depend
// on sample files, flags and metrics; the training loop handles these.
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
#include "tessera/models/step_options.h"
#include "tessera/ops/device/cached_memory.h"
#include "tessera/ops/optimizer/adamw.h"
#include "tessera/runtime/runtime.h"
#include "tessera/train/evaluation.h"
#include "tessera/train/graph_time.h"
#include "tessera/train/loss_sum.h"
#include "tessera/train/step_graph.h"
#include "tessera/train/step_input.h"
#include "tessera/train/update/gradient_norm.h"
#include "tessera/train/update/optimizer.h"
#include "tessera/train/update/router_bias.h"

namespace tessera::train {

struct TrainerOptions {
  models::StepOptions step;
  std::shared_ptr<const ops::UpdatePolicy> update = ops::one_rule(ops::make_rule(ops::AdamW{}));  // not null
  double clip = 1.0;
  // On GPUs: whether steps that follow their schedule are executed by a CUDA graph (step_graph.h).
  bool graph = false;
};

// The stop counter of steps with more rows of experts than the memory holds (StepOptions::expert_room).
inline constexpr const char* kExpertRoomStop = "expert_room";

// The results of the routers of a model with experts.
struct RouterResult {
  // Losses of the routers, multiplied by their coefficients, as the mean over blocks weighted by their tokens.
  double aux_loss = 0, z_loss = 0;
  std::int64_t dropped = 0;               // choices beyond the capacity of experts, over all layers
  std::vector<std::int64_t> counts = {};  // by sparse layer and expert: number of times that the expert was chosen
};

struct StepResult {
  // Mean loss of the step's tokens, before the update and without the routers' losses. Equal on every rank. NaN if the
  // step has no tokens (StepInput::tokens is 0).
  double loss = 0;
  std::optional<RouterResult> router;  // set for a model with experts
  double grad_norm = 0;                // norm before clipping; equal on every rank
  bool skipped = false;                // true: the norm was not finite, and the step updated no values on any rank
  // Set if a stop counter was above 0 on some rank. Then neither this step nor the later pending steps updated values
  // on any rank. The caller must enqueue this step again, then the discarded steps.
  std::optional<Stop> suppressed;
  int discarded = 0;  // if `suppressed` is set: number of later steps that were pending
  runtime::StepStatistics statistics;
  // Time on compute's lane from the end of the previous step to the end of this step. If no step was pending when this
  // step was enqueued, the time starts at the begin of this step. Includes suppressed and discarded attempts of this
  // step.
  double seconds = 0;
  double host_seconds = 0;  // seconds of the host to enqueue the step; on a CPU, to run the step
};

class Trainer {
 public:
  // Collective over the world: creates the groups. `world` must outlive the trainer.
  Trainer(comm::World& world, const TrainerOptions& options);
  // Waits for compute. If an exception is propagating, first cancels pending work, because a device does not free
  // memory that is in use.
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // The largest number of pending steps: enqueued and not finished.
  static constexpr int kMaxPending = Optimizer::kMaxUnconfirmed;

  // Runs one step: forward and backward of every microbatch, reduction, norm, clipping, update. Collective. For simple
  // loops; a training loop on GPUs is faster with the two halves below.
  StepResult train_step(const StepInput& input, double lr);
  // The first half of train_step: enqueues a step. The GPU can then execute this step while the host waits for the
  // previous step. Does not wait for the device if steps of this kind have a schedule and, with options.graph, a graph
  // that fits. On a CPU the step is complete when the function returns. Collective. Throws Error if kMaxPending steps
  // are pending.
  void enqueue_step(const StepInput& input, double lr);
  // The second half of train_step: waits for the oldest pending step. If this step was suppressed, also waits for the
  // later pending steps and discards them. No step is then pending, later updates apply again, and the state is as
  // before the suppressed step. Collective. Throws Error if no step is pending, and the errors of the step, including
  // those of other ranks.
  StepResult finish_step();
  int pending_steps() const { return pending_; }
  std::int64_t graph_steps() const { return graph_steps_; }  // number of steps that a graph executed
  double expert_room() const { return room_.factor; }        // current StepOptions::expert_room; may grow
  // Returns the number of steps that a loop should leave pending before it enqueues the next step, so that the device
  // stays busy.
  int steps_ahead() const { return parallel_.is_asynchronous() && !waits_for_scales() ? 1 : 0; }

  // Returns the mean loss of the input's tokens. Does not change the state of the training. Returns NaN if the
  // input has no tokens, or if a number format hid a value that is not finite. Returns nullopt if `between` returned
  // false. Collective.
  std::optional<double> evaluate(const StepInput& input, const BetweenBatches& between);
  double evaluate(const StepInput& input) { return evaluate(input, {}).value(); }

  runtime::Runtime& runtime() { return runtime_; }
  Optimizer& optimizer() { return optimizer_; }
  shard::ParallelGroups& parallel() { return parallel_; }
  nn::DelayedScales& scales() { return scales_; }
  // Calls GradientNorm::stop_counter. A step in which the counter is above 0 is suppressed.
  std::int64_t* stop_counter(std::string name) { return norm_.stop_counter(std::move(name)); }

 private:
  // The results of a step that the host has not read yet.
  struct Pending {
    double tokens = 1;
    LossSum losses;
    base::Fence summed;   // done when the sum of losses is complete
    base::Buffer clip;    // ops::Clip; in pinned memory for a GPU
    base::Buffer number;  // StepInput::step; in pinned memory for a GPU
    // By microbatch: the samples in pinned memory, from which a GPU copies.
    std::vector<base::Buffer> pinned;
    std::vector<models::Batch> samples;
    runtime::PendingStep step;
    base::Fence end;  // a timed fence, done when compute has finished the step
    int graph = 0;    // the number of the graph that the step launched, see GraphTime; 0: none
    double host_seconds = 0;
  };
  // Copies a microbatch to pinned memory, from which a GPU can copy while the host continues.
  static const models::Batch& pin(const models::Batch& batch, int microbatch, Pending& pending);
  // Copies the number of the step to the device. Kernels with random numbers read the number from device memory, so
  // each launch of a graph uses the number of its step.
  void set_number(std::int64_t step, Pending& pending);
  // Runs the step up to end_step. Returns the loss of each microbatch.
  std::vector<at::Tensor> run_microbatches(int microbatches, const StepGraph::Batches& batches, double scale);
  StepResult finish_oldest();
  static std::optional<RouterResult> router_of(const LossSum& sums, double tokens);
  // `losses` contains the results of run_microbatches.
  void update_weights(const std::vector<at::Tensor>& losses);
  void update_scales();
  // Returns whether a number format hid a value that is not finite in an evaluation, on any rank. Collective.
  bool was_value_hidden_by_evaluation();
  // Sets the counters and the first factor of room_. Called before the first step.
  void make_expert_room();
  // Allocates memory for as many expert rows as any rank needs, and discards the graph. Waits for compute. Collective.
  // No step may be pending.
  void grow_expert_room();
  // Returns whether any rank had too many rows of experts in an evaluation. Collective.
  bool had_too_many_rows_in_evaluation();
  // Returns whether delayed scaling does not have amaxes of any step yet. If true, the host must read whether a step
  // was skipped before it enqueues the next step.
  bool waits_for_scales() const { return scales_.size() > 0 && !scales_.are_known(); }
  // Returns GraphTime::seconds() of the steps that have ended so far.
  std::chrono::milliseconds expected_graph_time() const;
  // Launches the current step as a graph. Captures a new graph if the step does not fit the current graph. Returns the
  // losses.
  const std::vector<at::Tensor>& launch_graph(std::span<const models::Batch> batches, double scale);

  // Lanes use the following members, so the lanes must be destroyed before them.
  std::array<Pending, kMaxPending> steps_;
  std::unique_ptr<StepGraph> graph_;  // null: no graph is captured yet
  std::int64_t graph_steps_ = 0;
  base::Buffer number_;  // the number of the current step, in device memory
  LossSum evaluated_;
  int oldest_ = 0, pending_ = 0;
  base::Fence counted_from_;   // a timed fence at which StepResult::seconds of the oldest pending step starts
  GraphTime graph_time_;       // of the steps that finish_step returned
  bool is_repeating_ = false;  // whether the last step that finish_step returned was suppressed
  const int exceptions_ = std::uncaught_exceptions();  // number of exceptions in flight when this object was made

  TrainerOptions options_;
  shard::ParallelGroups parallel_;
  ops::CachedMemoryScope cached_memory_{parallel_.device};  // destroyed after all tensors
  runtime::Runtime runtime_;
  nn::DelayedScales scales_;
  nn::ExpertRoom room_;
  // RoomMemory (trainer.cpp). Empty: memory is allocated for the rows of all possible choices.
  base::Buffer room_memory_;
  nn::Context context_;
  std::unique_ptr<models::Model> model_;
  Optimizer optimizer_;
  RouterBiasUpdate router_bias_;
  FiniteCheck finite_check_;
  GradientNorm norm_;
};

}  // namespace tessera::train
