// The commit point of a step: what the norm of its gradient and its stop counters decide about its update. The CPU and
// CUDA take the same decision with the same bits.
#pragma once
#include <cmath>
#include <cstdint>

#include "tessera/base/host_device.h"

namespace tessera::ops {

// Counters of what must stop an update that a run may have.
inline constexpr int kStopCounters = 8;

// The decision about the last step's update. It lies in the memory of the device that carries the updates out.
struct Clip {
  double norm = 0;    // of the whole gradient, before clipping
  double factor = 1;  // to multiply the gradient with
  // 0: the update changes nothing, since the step is skipped (its norm is infinite or NaN) or suppressed.
  std::int32_t applies = 1;
  // Not 0: a stop counter was above 0 in this step or in one before it. It stays so, and no update applies, until the
  // host clears it.
  std::int64_t suppressed = 0;
  std::int64_t stops[kStopCounters] = {};  // the counters of this step, over all ranks
};

// min(1, limit / (norm + 1e-6)); 1 for a limit of 0 and for a norm that is NaN.
TESSERA_HOST_DEVICE inline double clip_factor(double norm, double limit) {
  const double factor = limit / (norm + 1e-6);
  return limit != 0 && factor < 1 ? factor : 1.0;
}

// Takes a step's decision. stops: [kStopCounters], the counters of the step over all ranks, at least 0; they are 0
// afterwards, for the next step.
TESSERA_HOST_DEVICE inline void decide_update(double sum_of_squares, double limit, std::int64_t* stops, Clip& clip) {
  clip.norm = std::sqrt(sum_of_squares);
  clip.factor = clip_factor(clip.norm, limit);
  for (int i = 0; i < kStopCounters; ++i) {
    clip.stops[i] = stops[i];
    if (stops[i] > 0) clip.suppressed = 1;
    stops[i] = 0;
  }
  clip.applies = std::isfinite(clip.norm) && clip.suppressed == 0 ? 1 : 0;
}

}  // namespace tessera::ops
