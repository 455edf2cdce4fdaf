// A training step as a CUDA graph. The graph is captured from one step that follows its schedule, and launched for
// later steps that fit the graph.
//
// The graph fixes the work, the addresses and the constants of the step. Later steps can use the graph: the schedule
// assigns addresses once, and the learning rate and the numbers of the update and the step are in device memory.
// Samples are copied to the buffers that the graph reads. A step fits the graph if it has no document boundaries, and
// equals the captured step in its number of tokens and in its microbatches: their number, their shape and their place
// in the global batch.
#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <span>
#include <vector>

#include "tessera/models/model.h"
#include "tessera/ops/device/graph.h"
#include "tessera/runtime/runtime.h"

namespace tessera::train {

class StepGraph {
 public:
  using Batches = std::function<models::Batch(int microbatch)>;

  // Captures the runtime's current step up to its last publish event. The step must have begun, and
  // GraphSteps::can_be_graph() must be true. record(batches) runs the step from its begin to its last publish event,
  // and returns the losses of the microbatches. Compute's lane must be idle. The constructor waits for the other lanes.
  // It does not launch the graph. Collective. Throws Error if the step cannot be captured.
  using Record = std::function<std::vector<at::Tensor>(const Batches& batches)>;
  StepGraph(runtime::Runtime& runtime, std::vector<models::Batch> batches, double scale, const Record& record);
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  // Returns whether a step with these samples fits the graph.
  bool fits(std::span<const models::Batch> batches, double scale) const;
  // Enqueues the runtime's current step, which must fit the graph: first the copies of the samples, then the graph. The
  // samples are in pinned memory and must stay valid until the step has finished. `repeats`: true unless this step was
  // captured, so its events are not recorded yet. `expected`: the approximate time of a step, from which the graph's
  // time limit is derived. Collective.
  void launch(std::span<const models::Batch> batches, bool repeats, std::chrono::milliseconds expected);
  // Returns the losses of the last launch, by microbatch.
  const std::vector<at::Tensor>& losses() const { return losses_; }

 private:
  runtime::Runtime& runtime_;
  const int schedules_;
  const double scale_;
  ops::Graph graph_;
  std::vector<models::Batch> inputs_;  // samples on the device, which the graph reads
  std::vector<at::Tensor> losses_;
  runtime::StepStatistics statistics_;
  // By lane of ParallelGroups::lanes_ahead(): a signal after the lane's work for the step, recorded before the launch.
  std::vector<base::Signal> ahead_;
};

}  // namespace tessera::train
