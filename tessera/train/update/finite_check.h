// Finds values that are not finite and that do not reach the gradients, because a number format saturates them.
#pragma once
#include <cstdint>

#include "tessera/base/memory/buffer.h"
#include "tessera/nn/delayed_scales.h"
#include "tessera/runtime/runtime.h"

namespace tessera::train {

// Saturation hides two kinds of values. The first kind is elements of a master that is cast to an encoding. The cast
// sets a mark of the weight to NaN, which remains until the weight is cast again from finite values. The second kind is
// inputs and gradients of products with delayed scaling, whose scale is known before the values. Such values make an
// amax infinite. All other values that are not finite reach the products, and therefore the loss and the gradients.
//
// One object per runtime. The runtime and the scales must outlive the object. Used by one thread.
class FiniteCheck {
 public:
  // Registers a mark for every parameter with an encoding. Construct the object after all parameters are registered and
  // before the first cast.
  FiniteCheck(runtime::Runtime& runtime, nn::DelayedScales& scales);
  ~FiniteCheck();
  FiniteCheck(const FiniteCheck&) = delete;
  FiniteCheck& operator=(const FiniteCheck&) = delete;

  // Returns whether a number format can hide values in this run. The result is equal on every rank.
  bool is_needed() const { return encoded_ > 0 || scales_.size() > 0; }
  // Add this rank's number of marks and amaxes that are not finite to *counter, an int64 in device memory. Call
  // count_after_step after the last backward pass of a training step, and count_after_evaluation after an evaluation.
  // Both functions enqueue work on compute's lane. They are not collective.
  void count_after_step(std::int64_t* counter) const;
  void count_after_evaluation(std::int64_t* counter) const;

 private:
  void count(std::span<const float> amaxes, std::int64_t* counter) const;

  runtime::Runtime& runtime_;
  nn::DelayedScales& scales_;
  std::int64_t encoded_ = 0;
  base::Buffer marks_;  // one float for each parameter with an encoding
};

}  // namespace tessera::train
