// Delayed scaling of fp8: the multiplier of a step comes from the amaxes of the steps before it.
#pragma once
#include <cmath>
#include <cstdint>

#include "tessera/base/host_device.h"
#include "tessera/quant/formats/encoding.h"

namespace tessera::quant {

enum class AmaxChoice : std::uint8_t { newest, greatest };

// The state of several tensors. Slot 0 of the history takes the amaxes of the step under way; the amaxes of a slot lie
// side by side, so that one reduction over ranks takes them all.
struct DelayedScaling {
  float* history = nullptr;           // [length, tensors]
  const Element* elements = nullptr;  // [tensors]
  float* multipliers = nullptr;       // [tensors]; values are multiplied by them
  float* inverses = nullptr;          // [tensors], 1 / multiplier; null: not written
  std::int64_t length = 0, tensors = 0;
  AmaxChoice choice = AmaxChoice::greatest;
  int margin = 0;  // multipliers are smaller by 2^margin; from -126 to 126
  // 0: the step does not count, and its amaxes are forgotten. Null: the step counts. A step with an infinite amax must
  // not count.
  const std::int32_t* counts = nullptr;
  std::int64_t inverse_stride = 1;  // numbers from one inverse to the next
};

// The multiplier after a step: greatest / 2^margin / amax, or the old one where that is not a positive finite number.
TESSERA_HOST_DEVICE inline float delayed_multiplier(float old, float amax, Element element, int margin) {
  const float multiplier = greatest_of(element) * power_of_two(-margin) / amax;
  return multiplier > 0 && multiplier <= FLT_MAX ? multiplier : old;
}

// One tensor's step: the multiplier from its history, the history moved on by one and slot 0 cleared for the next step.
// The oldest amax, in slot 1, is dropped after it was looked at.
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

// All tensors, in memory of the host. CudaTable::update_multipliers does the same on a GPU.
void update_multipliers(const DelayedScaling& scaling);

}  // namespace tessera::quant
