// Applies AdamW with clipping to this rank's part of the weights, and sets the initial values of a run.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/base/memory/buffer.h"
#include "tessera/ops/optimizer/adamw.h"
#include "tessera/runtime/runtime.h"
#include "tessera/train/update/weight_cast.h"

namespace tessera::train {

// Divides the trainable parameters into the buckets of schedule/buckets.h, in the order of first uses. A bucket is
// updated, cast and published as a whole. The gathers of a published bucket can start while later buckets are updated.
std::vector<std::vector<schedule::ParameterId>> optimizer_buckets(runtime::Runtime& runtime);

// fused: if a weight is its rounded master, the update also writes the weight, in the same pass over memory. apart: a
// cast writes all weights after the update. Both orders give the same bits.
enum class CastOrder { fused, apart };

class Optimizer {
 public:
  // `options` contains the constants of AdamW. Each update sets lr, step and gradient_scale. The moments start at zero.
  Optimizer(runtime::Runtime& runtime, const ops::AdamW& options, CastOrder order = CastOrder::fused);

  struct Moments {
    base::Buffer exp_avg, exp_avg_sq;  // in the accumulator type and the state layout
  };
  Moments& moments(schedule::ParameterId id) { return moments_[static_cast<std::size_t>(id)]; }

  // The largest number of unconfirmed updates. On a GPU, an update is unconfirmed until the host has read whether it
  // was applied.
  static constexpr int kMaxUnconfirmed = ops::kStepChoices;

  // Sets the learning rate of the next update. On a GPU the rate is copied to the device. Throws Error if
  // kMaxUnconfirmed updates are unconfirmed.
  void begin_update(double lr);
  // Updates masters and moments from main_grad, bucket by bucket. After the update of a bucket, its planes are written
  // and its weights are published.
  //
  // `clip` is in device memory. It contains the clip factor, and whether the update applies. If the update does not
  // apply, the bytes of masters, moments and planes and the number of updates do not change.
  //
  // On a GPU, every update enqueues the same work on compute's lane, because the host does not know before
  // confirm_update whether the update applies. The weights are always cast, published and gathered for the next step.
  // If the update does not apply, the masters are unchanged, so each cast writes the same bytes as before.
  void update(const ops::Clip* clip);
  // Called when the host has read the clip of the oldest unconfirmed update.
  void confirm_update(const ops::Clip& clip);

  // Returns AdamW's step number: the number of updates applied so far, including updates before a resume. The number is
  // exact only if no update is unconfirmed.
  std::int64_t updates() const { return updates_; }
  // Throws Error if an update is unconfirmed.
  void set_updates(std::int64_t updates);

 private:
  ops::AdamWBuffers buffers_of(schedule::ParameterId id);
  bool is_fused(const shard::ShardedParameter& parameter) const;
  // Calls update(shards) with the buffers of a bucket, casts the weights that the update did not write, and publishes
  // the bucket.
  template <typename Update>
  void update_bucket(std::span<const schedule::ParameterId> bucket, Update&& update);
  void update_on_device(const ops::Clip* clip);

  runtime::Runtime& runtime_;
  ops::AdamW options_;
  CastOrder order_;
  WeightCast cast_;
  std::vector<Moments> moments_;  // by parameter id; empty for a frozen parameter
  std::int64_t updates_ = 0;      // number of updates that the host has confirmed as applied
  // Members for a GPU, where the number of updates is in device memory and increases with each update that applies.
  int unconfirmed_ = 0;
  std::vector<base::Buffer> uploads_;  // pinned ops::StepChoices, one for each unconfirmed update
  std::size_t next_upload_ = 0;
  base::Buffer choices_, scalars_, counter_;  // ops::StepChoices, ops::StepScalars, std::int64_t
};

// Fills the master and the weight of every parameter with initial values from the seed. The values of the logical
// tensors are equal for every mesh (docs/numerics.md).
void set_initial_values(runtime::Runtime& runtime, std::uint64_t seed);

}  // namespace tessera::train
