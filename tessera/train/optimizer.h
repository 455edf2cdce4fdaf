// AdamW over this rank's part of the weights, with clipping; and the values a run starts from.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/base/buffer.h"
#include "tessera/ops/optimizer/adamw.h"
#include "tessera/runtime/runtime.h"
#include "tessera/train/weight_cast.h"

namespace tessera::train {

// The trainable parameters in the order in which the next step uses them first, in the buckets of schedule/buckets.h: a
// bucket is updated, cast and published, so that its gathers start while later ones update.
std::vector<std::vector<schedule::ParameterId>> optimizer_buckets(runtime::Runtime& runtime);

// fused: the update writes each weight that is its rounded master, in the same pass over memory. apart: a cast writes
// all weights after the update. Both give the same bits.
enum class CastOrder { fused, apart };

class Optimizer {
 public:
  // options: the constants; lr, step and gradient_scale are set at each update. Moments start at zero.
  Optimizer(runtime::Runtime& runtime, const ops::AdamW& options, CastOrder order = CastOrder::fused);

  struct Moments {
    base::Buffer exp_avg, exp_avg_sq;  // accumulator type, state layout
  };
  Moments& moments(schedule::ParameterId id) { return moments_[static_cast<std::size_t>(id)]; }

  // Of updates on a GPU that the host has not seen.
  static constexpr int kMostUnseen = ops::kStepChoices;

  // Before update: its learning rate. On a GPU it is brought to the device. Errors: more than kMostUnseen updates
  // unseen.
  void begin_update(double lr);
  // Updates masters and moments from main_grad, bucket by bucket; a cast writes the planes of the bucket, its publish
  // follows. clip: memory of the device, with the factor, and whether the update applies: where it does not, no byte of
  // masters, moments and planes changes and the number of updates stays. On a GPU it is work of compute's lane, the
  // same for every update, and the host does not know what came of it until saw_update: the weights are cast, published
  // and gathered for the next step in any case. That is right where the update does not apply, too: the masters are
  // what they were, so each cast writes the bytes that stand there, and the new version of a weight is equal to the old
  // one.
  void update(const ops::Clip* clip);
  // The host has seen the clip of the oldest update that it had not seen.
  void saw_update(const ops::Clip& clip);

  // Updates applied so far, this run and those before it: AdamW's step number. Exact while there are none unseen.
  std::int64_t updates() const { return updates_; }
  // Errors: some are unseen.
  void set_updates(std::int64_t updates);

 private:
  ops::AdamWBuffers buffers_of(schedule::ParameterId id);
  bool is_fused(const shard::ShardedParameter& parameter) const;
  // Calls update(shards) with the buffers of a bucket, casts its weights that the update did not write, then publishes
  // the bucket.
  template <typename Update>
  void update_bucket(std::span<const schedule::ParameterId> bucket, Update&& update);
  void update_on_device(const ops::Clip* clip);

  runtime::Runtime& runtime_;
  ops::AdamW options_;
  CastOrder order_;
  WeightCast cast_;
  std::vector<Moments> moments_;  // by parameter id; empty buffers for frozen ones
  std::int64_t updates_ = 0;      // that the host has seen
  // On a GPU. The number of updates lives there, and advances with those that take place.
  int unseen_ = 0;
  std::vector<base::Buffer> uploads_;  // pinned ops::StepChoices, in turn: one for each unseen update
  std::size_t next_upload_ = 0;
  base::Buffer choices_, scalars_, counter_;  // ops::StepChoices, ops::StepScalars, std::int64_t
};

// Fills master and weight of every parameter from the seed: the same logical values for every mesh (docs/numerics.md).
void set_initial_values(runtime::Runtime& runtime, std::uint64_t seed);

}  // namespace tessera::train
