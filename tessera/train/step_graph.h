// A training step as a CUDA graph. The graph is captured from one step that follows its schedule, and launched for
// later steps that fit.
//
// The graph fixes the step's work, addresses and constants. Later steps can use the graph because the schedule assigns
// addresses once, and the learning rate, the number of updates and the number of the step are in device memory. Samples
// are copied to the buffers that the graph reads. A step fits if it has the same number of microbatches of the same
// shape and place in the global batch, no document boundaries, and the same number of tokens.
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

  // Captures the runtime's current step up to its last publish. The step must have begun and must satisfy
  // can_be_graph(). record(batches) runs everything between the step's begin and that publish, and returns the
  // microbatches' losses. Compute's lane must be idle; the constructor waits for the other lanes. Launches nothing.
  // Collective. Throws Error if the step cannot be captured.
  using Record = std::function<std::vector<at::Tensor>(const Batches& batches)>;
  StepGraph(runtime::Runtime& runtime, std::vector<models::Batch> batches, double scale, const Record& record);
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  // Returns whether a step with these samples can be a launch of this graph.
  bool fits(std::span<const models::Batch> batches, double scale) const;
  // Enqueues the runtime's current step, which must fit: first the copies of the samples, then the graph. The samples
  // are pinned and must stay valid until the step has finished. repeats: the runtime has not recorded the step's
  // events. expected: the approximate time of a step, from which the graph's time limit is derived. Collective.
  void launch(std::span<const models::Batch> batches, bool repeats, std::chrono::milliseconds expected);
  // The losses of the last launch, by microbatch.
  const std::vector<at::Tensor>& losses() const { return losses_; }

 private:
  runtime::Runtime& runtime_;
  const int schedules_;
  const double scale_;
  ops::Graph graph_;
  std::vector<models::Batch> inputs_;  // on the device
  std::vector<at::Tensor> losses_;
  runtime::StepStatistics statistics_;
  // By lane that works ahead: the signal after the lane's work for the step, recorded before the launch.
  std::vector<base::Signal> ahead_;
};

}  // namespace tessera::train
