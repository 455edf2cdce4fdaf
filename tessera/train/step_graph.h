// A training step as a CUDA graph: made of one step that follows its schedule, launched for later ones like it.
//
// Its work, addresses and constants are those of that step: the schedule lays memory out once, the learning rate and
// the number of updates lie in the device's memory, and samples are copied to where the graph reads them. Fits is a
// step with as many microbatches of the same shape, without document boundaries, and as many tokens.
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

  // Takes the runtime's step, which can be a graph and has begun, to its last publish. record: calls everything between
  // its argument's begin and that publish, and returns the microbatches' losses. Compute's lane has come to
  // an end; waits for the others. Nothing is launched. Collective. Errors: what cannot be recorded.
  using Record = std::function<std::vector<at::Tensor>(const Batches& batches)>;
  StepGraph(runtime::Runtime& runtime, std::vector<models::Batch> batches, double scale, const Record& record);
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;

  // Whether a step with these samples is a launch of it.
  bool fits(std::span<const models::Batch> batches, double scale) const;
  // The runtime's step is one that fits. Enqueues it: samples first, which are pinned and stay until it is over. With
  // repeats the runtime has not seen its events. expected: how long a step takes, about; the graph's time limit follows
  // from it. Collective.
  void launch(std::span<const models::Batch> batches, bool repeats, std::chrono::milliseconds expected);
  // Of the last launch, by microbatch.
  const std::vector<at::Tensor>& losses() const { return losses_; }

 private:
  runtime::Runtime& runtime_;
  const int schedules_;
  const double scale_;
  ops::Graph graph_;
  std::vector<models::Batch> inputs_;  // on the device
  std::vector<at::Tensor> losses_;
  runtime::StepStatistics statistics_;
  std::vector<base::Signal> ahead_;  // of the lanes that work ahead: what they do for a step before it is launched
};

}  // namespace tessera::train
