// Finds non-finite values that no gradient shows, because a number format saturates them.
#pragma once
#include <cstdint>

#include "tessera/base/buffer.h"
#include "tessera/nn/delayed_scales.h"
#include "tessera/runtime/runtime.h"

namespace tessera::train {

// Saturation hides two kinds of values. The first kind is elements of a master that is cast to an encoding. Such a cast
// marks the weight, and the mark remains until the weight is cast again from finite values. The second kind is inputs
// and gradients of products whose scale is known before the values (delayed scaling). Such values make an amax
// infinite. All other non-finite values reach the products, and thereby the loss and the gradients.
//
// One object per runtime. The runtime and the scales must outlive it. Used by one thread.
class FiniteCheck {
 public:
  // Registers a mark for every encoded parameter. Construct it after the runtime has all its parameters and before the
  // first cast.
  FiniteCheck(runtime::Runtime& runtime, nn::DelayedScales& scales);
  ~FiniteCheck();
  FiniteCheck(const FiniteCheck&) = delete;
  FiniteCheck& operator=(const FiniteCheck&) = delete;

  // Returns whether this run has values that a format can hide. The result is the same on every rank.
  bool is_needed() const { return encoded_ > 0 || scales_.size() > 0; }
  // Adds this rank's number of non-finite marks and amaxes to *counter, an int64 in device memory. count_after_step
  // counts the values of a training step, after its last backward pass. count_after_evaluation counts the values of an
  // evaluation. Both functions enqueue work on compute's lane and are not collective.
  void count_after_step(std::int64_t* counter) const;
  void count_after_evaluation(std::int64_t* counter) const;

 private:
  void count(std::span<const float> amaxes, std::int64_t* counter) const;

  runtime::Runtime& runtime_;
  nn::DelayedScales& scales_;
  std::int64_t encoded_ = 0;
  base::Buffer marks_;  // one float per encoded parameter
};

}  // namespace tessera::train
