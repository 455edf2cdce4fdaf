// A training program without a model. The test sets the bytes of weights and the seconds of operators. A microbatch may
// use only some of the layers.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/bench/timed_steps.h"

namespace tessera::bench {

// One weight. Forward is one product. Backward is two products of the same length: dgrad, then wgrad.
struct SyntheticLayer {
  std::int64_t weight_bytes = 256 << 10;  // bytes of the whole fp32 weight; rounded up to whole rows
  double forward_seconds = 0.002;
  double update_seconds = 0.0005;  // seconds of the optimizer for this weight
  bool once = false;               // used only in the first microbatch of a step
};

struct SyntheticModel {
  std::vector<SyntheticLayer> layers;
  bool tied = false;  // whether the last layer uses the weight of the first layer
  // Bytes of each product's result, which the tp ranks sum; 0: results are not summed.
  std::int64_t activation_bytes = 0;
};

class SyntheticProgram final : public TimedSteps {
 public:
  // `parallel` must outlive the program. Throws InputError for: no layers; bytes below 1; seconds below 0.
  SyntheticProgram(shard::ParallelGroups& parallel, SyntheticModel model, const runtime::RuntimeOptions& options);

  void step(int microbatches) override;
  runtime::Runtime& runtime() override { return runtime_; }
  const std::vector<double>& segments() const override { return segments_; }
  // Returns an empty list: each collective is waited for directly after its event.
  const std::vector<int>& comm_waits() const override { return no_waits_; }

 private:
  schedule::ParameterId weight_of(std::size_t layer) const;
  void backward(std::size_t layer, int microbatch);
  void multiply(std::size_t layer, schedule::PassId pass);
  void sum_over_tp(schedule::PassId pass);
  void compute(double seconds);
  void happened();  // called after an event was recorded

  shard::ParallelGroups& parallel_;
  const SyntheticModel model_;
  runtime::Runtime runtime_;
  base::Buffer activations_;
  std::vector<double> segments_;
  const std::vector<int> no_waits_;
  double pending_ = 0;  // seconds computed since the last event
};

MakeTimedSteps steps_of(const SyntheticModel& model);

}  // namespace tessera::bench
