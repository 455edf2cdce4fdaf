// Finds values that are not finite and that no gradient shows, since a number format saturates them.
#pragma once
#include <cstdint>

#include "tessera/base/buffer.h"
#include "tessera/nn/delayed_scales.h"
#include "tessera/runtime/runtime.h"

namespace tessera::train {

// Two kinds of values are hidden by saturation. Elements of a master that is cast to an encoding: each cast marks the
// weight, and the mark stays until the weight is cast again from finite values. Inputs and gradients of products whose
// scale is known before they are (delayed scaling): their amaxes are infinite. All other values that are not finite
// reach the products, and so the loss and the gradients, by themselves.
//
// One object a runtime. Both the runtime and the scales outlive it. One thread.
class FiniteCheck {
 public:
  // After the runtime has all its parameters, before the first cast. Gives every encoded parameter its mark.
  FiniteCheck(runtime::Runtime& runtime, nn::DelayedScales& scales);
  ~FiniteCheck();
  FiniteCheck(const FiniteCheck&) = delete;
  FiniteCheck& operator=(const FiniteCheck&) = delete;

  // Whether this run has numbers that a format can hide. The same on every rank.
  bool is_needed() const { return encoded_ > 0 || scales_.size() > 0; }
  // Adds to *counter, an int64 of the device, how many marks and amaxes of this rank are not finite: those of a
  // training step, after its last backward pass, or those of an evaluation. Enqueued on compute's lane. Local.
  void count_after_step(std::int64_t* counter) const;
  void count_after_evaluation(std::int64_t* counter) const;

 private:
  void count(std::span<const float> amaxes, std::int64_t* counter) const;

  runtime::Runtime& runtime_;
  nn::DelayedScales& scales_;
  std::int64_t encoded_ = 0;
  base::Buffer marks_;  // a float for each encoded parameter
};

}  // namespace tessera::train
