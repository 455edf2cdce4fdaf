// The runtime of a model on one rank, which the training loop and the optimizer use. Layers use Program (program.h).
//
//   program()      RunningProgram, which records and executes the calls of a step
//   parameters()   ParameterTable, which registers and finds parameters
//   parameter(id)  a parameter's shard and its buffers
//   graph()        GraphSteps, which runs steps as captured graphs
// A further part, Plans, makes and proves the schedules that steps follow. All parts share one StepContext.
//
// One object per model and rank; not thread-safe; no global state.
#pragma once
#include <vector>

#include "tessera/runtime/replay/graph_steps.h"
#include "tessera/runtime/replay/plans.h"
#include "tessera/runtime/running_program.h"
#include "tessera/runtime/step_context.h"
#include "tessera/runtime/watch/pending_step.h"

namespace tessera::runtime {

class Runtime {
 public:
  // `parallel` outlives the runtime.
  Runtime(shard::ParallelGroups& parallel, shard::ParameterTypes types, const RuntimeOptions& options = {});
  // Waits until no work is in flight. Collective, unless a rank has failed.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  // Cancels pending and later operations. The owner calls this function when the run cannot continue.
  void abandon();

  Program& program() { return program_; }
  ParameterTable& parameters() { return step_.parameters; }
  const ParameterTable& parameters() const { return step_.parameters; }
  shard::ShardedParameter& parameter(schedule::ParameterId id) { return step_.entry(id).parameter; }
  shard::ParallelGroups& parallel() { return step_.parallel; }
  GraphSteps& graph() { return graph_; }

  // Called outside a step. Waits until no work is in flight. Prefetches for the next step read the stored weights.
  // Therefore call this function before code other than the optimizer writes weights.
  void wait_until_idle();
  // Returns the handle of the last step begun, for finish(). Called after the step's last publish event. Compute may
  // still execute the step.
  PendingStep pending() const;
  // Blocks until compute has finished the step, and until the events of this step and of earlier steps have been
  // compared between ranks. Call this function in the order of the steps. Throws the errors of the step.
  StepStatistics finish(const PendingStep& step);
  // Returns the ids of all weights: first the weights that the last training step used, in the order of their first
  // uses, then the other weights. An optimizer publishes in this order, so that the weights that the next step needs
  // first are gathered first.
  std::vector<schedule::ParameterId> by_first_use() const;

  // Sets whether later steps measure the waits of a GPU's compute (default: true). Each measurement costs some
  // microseconds. A step with a timeline always measures.
  void measure_waits(bool on) { program_.measure_waits(on); }
  // Sets whether later steps on a GPU measure how long compute waits for the host (default: false).
  void measure_pace(bool on) { program_.measure_pace(on); }
  // Returns the counters of the last step begun. On a GPU, compute must have finished the step.
  StepStatistics statistics() const;
  const schedule::Trace& trace() const { return step_.recorder.trace(); }  // trace of the last step begun
  // Returns the schedule of steps of this kind, or null if they have no schedule.
  const schedule::Schedule* schedule(schedule::StepKind kind, int microbatches) const;
  ScheduleStatistics schedule_statistics() const;
  // Sets whether steps record a timeline, from the next begin_step on.
  void record_timeline(bool on) { step_.timeline.record(on); }
  // Returns the timeline of the last step begun, including its publish events. The timeline is empty if it was not
  // recorded. Waits until the exchange of weights between replicas is complete.
  std::vector<TimelineSpan> timeline() const;

 private:
  bool waits_are_known() const;

  int exceptions_;  // number of exceptions in flight when the runtime was constructed
  StepContext step_;
  Plans plans_;
  RunningProgram program_;
  GraphSteps graph_;
};

}  // namespace tessera::runtime
