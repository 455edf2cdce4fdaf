// AdamW over this rank's part of the weights, with clipping; and the values a run starts from.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/base/buffer.h"
#include "tessera/ops/adamw.h"
#include "tessera/shard/runtime.h"

namespace tessera::train {

// The trainable parameters in the order in which the next step uses them first, in at most kOptimizerBuckets buckets of
// about as many elements each: a bucket is updated, then published, so that its gathers start while later ones update.
inline constexpr std::int64_t kOptimizerBuckets = 8;
std::vector<std::vector<shard::ParameterId>> optimizer_buckets(shard::Runtime& runtime);

class Optimizer {
 public:
  // options: the constants; lr, step and gradient_scale are set at each update. Moments start at zero.
  Optimizer(shard::Runtime& runtime, const ops::AdamW& options);

  struct Moments {
    base::Buffer exp_avg, exp_avg_sq;  // accumulator type, state layout
  };
  Moments& moments(shard::ParameterId id) { return moments_[static_cast<std::size_t>(id)]; }

  // Updates master, moments and weights from main_grad and publishes every trainable parameter. clip: the factor, and
  // whether there is an update at all: where the norm is not finite every value stays as it is.
  void update(double lr, const ops::Clip& clip);
  // The same on a GPU, as work of compute's lane that reads the factor there. The update counts: take_back once the
  // host has seen that it was none.
  void update_on_device(double lr, const ops::Clip* clip);
  void take_back() { --updates_; }

  // Updates applied so far, this run and those before it: AdamW's step number.
  std::int64_t updates() const { return updates_; }
  void set_updates(std::int64_t updates) { updates_ = updates; }

 private:
  ops::AdamWBuffers buffers_of(shard::ParameterId id);

  shard::Runtime& runtime_;
  ops::AdamW options_;
  std::vector<Moments> moments_;  // by parameter id; empty buffers for frozen ones
  std::int64_t updates_ = 0;
  base::Buffer scalars_, pinned_scalars_;  // on a GPU: ops::StepScalars
};

// Fills master and weight of every parameter from the seed: the same logical values for every mesh (docs/numerics.md).
void set_initial_values(shard::Runtime& runtime, std::uint64_t seed);

}  // namespace tessera::train
