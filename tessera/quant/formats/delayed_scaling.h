// Delayed scaling of fp8: the multiplier of a step is computed from the amaxes of earlier steps.
#pragma once
#include <cmath>
#include <cstdint>

#include "tessera/base/host_device.h"
#include "tessera/quant/formats/encoding.h"

namespace tessera::quant {

enum class AmaxChoice : std::uint8_t { newest, greatest };

// The state of several tensors. A slot of the history holds one amax for each tensor. Slot 0 belongs to the current
// step. The amaxes of a slot are adjacent, so one reduction over ranks covers all tensors.
struct DelayedScaling {
  float* history = nullptr;           // [length, tensors]
  const Element* elements = nullptr;  // [tensors]
  float* multipliers = nullptr;       // [tensors]; factors by which values are multiplied before they are rounded
  float* inverses = nullptr;          // [tensors], 1 / multiplier; null: not written
  std::int64_t length = 0, tensors = 0;
  AmaxChoice choice = AmaxChoice::greatest;
  int margin = 0;  // multipliers are divided by 2^margin; from -126 to 126
  // If *counts is 0, the step was skipped, and the amaxes of the step are discarded. If the pointer is null, every step
  // counts. A step with an infinite amax must be skipped.
  const std::int32_t* counts = nullptr;
  std::int64_t inverse_stride = 1;  // distance between two inverses, in elements
};

// Returns the multiplier after a step: greatest / 2^margin / amax, where `greatest` is the greatest number of the
// element type. Returns the old multiplier if the result is not a positive finite number.
TESSERA_HOST_DEVICE inline float delayed_multiplier(float old, float amax, Element element, int margin) {
  const float multiplier = greatest_of(element) * power_of_two(-margin) / amax;
  return multiplier > 0 && multiplier <= FLT_MAX ? multiplier : old;
}

// Updates one tensor after a step. Computes the multiplier from the history, shifts the history by one slot, and clears
// slot 0 for the next step. The oldest amax is in slot 1. This update is the last one that uses the oldest amax.
TESSERA_HOST_DEVICE inline void update_multiplier(const DelayedScaling& scaling, std::int64_t tensor) {
  float* history = scaling.history + tensor;
  const std::int64_t stride = scaling.tensors;
  if (scaling.counts != nullptr && *scaling.counts == 0) {
    history[0] = 0;
    return;
  }
  const float newest = history[0];
  float greatest = newest;
  for (std::int64_t slot = 1; slot < scaling.length; ++slot) {
    const float amax = history[slot * stride];
    greatest = fmaxf(greatest, amax);
    if (slot > 1) history[(slot - 1) * stride] = amax;
  }
  if (scaling.length > 1) history[(scaling.length - 1) * stride] = newest;
  history[0] = 0;
  const float amax = scaling.choice == AmaxChoice::newest ? newest : greatest;
  const float multiplier =
      delayed_multiplier(scaling.multipliers[tensor], amax, scaling.elements[tensor], scaling.margin);
  scaling.multipliers[tensor] = multiplier;
  if (scaling.inverses != nullptr) scaling.inverses[tensor * scaling.inverse_stride] = 1.0F / multiplier;
}

// Updates all tensors in host memory. CudaTable::update_multipliers updates all tensors in GPU memory.
void update_multipliers(const DelayedScaling& scaling);

}  // namespace tessera::quant
