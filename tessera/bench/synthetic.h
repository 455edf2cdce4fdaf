// A training program without tensors: weights of so many bytes, operators that take so many seconds. Weights and
// gradients really travel; what they hold is zeros.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/runtime/runtime.h"

namespace tessera::bench {

// One weight. Forward is a product, backward two of the same length: the input's gradient, then the weight's.
struct SyntheticLayer {
  std::int64_t weight_bytes = 256 << 10;  // fp32, before any cut; rounded up to whole rows
  double forward_seconds = 0.002;
  double update_seconds = 0.0005;  // the optimizer's
  bool once = false;               // takes part in the first microbatch of a step alone
};

struct SyntheticModel {
  std::vector<SyntheticLayer> layers;
  bool tied = false;                  // the last layer uses the weight of the first
  std::int64_t activation_bytes = 0;  // behind each product of input and weight, summed over the tp ranks; 0: none
};

// One rank's. Where time is virtual it passes on the host's clock, else the thread sleeps.
class SyntheticProgram {
 public:
  // `parallel` outlives the program. Errors (InputError): no layers, bytes below 1, seconds below 0.
  SyntheticProgram(shard::Parallel& parallel, SyntheticModel model, const runtime::RuntimeOptions& options);

  // A training step with all its publishes. Collective.
  void step(int microbatches);

  runtime::Runtime& runtime() { return runtime_; }
  // Of the last step, by event: how long the program computed before it.
  const std::vector<double>& segments() const { return segments_; }

 private:
  schedule::ParameterId weight_of(std::size_t layer) const;
  void backward(std::size_t layer);
  void multiply(std::size_t layer, schedule::Pass pass);
  void sum_over_tp(schedule::Pass pass);
  void compute(double seconds);
  void happened();  // an event

  shard::Parallel& parallel_;
  const SyntheticModel model_;
  runtime::Runtime runtime_;
  base::Buffer activations_;
  std::vector<double> segments_;
  double pending_ = 0;  // computed since the last event
};

}  // namespace tessera::bench
