// The decision about a step's update, from the norm of its gradient and its stop counters. The CPU and CUDA make the
// same decision with the same bits.
#pragma once
#include <cmath>
#include <cstdint>

#include "tessera/base/host_device.h"

namespace tessera::ops {

// The number of stop counters. Each counter counts conditions of a run that must stop an update.
inline constexpr int kStopCounters = 8;

// The decision about the update of the last step. The decision is stored in the memory of the device that runs the
// updates.
struct Clip {
  double norm = 0;    // of the whole gradient, before clipping
  double factor = 1;  // multiplies the gradient
  // 0: the update changes nothing, because the step is skipped (its norm is infinite or NaN) or suppressed.
  std::int32_t applies = 1;
  // Not 0 if a stop counter was above 0 in this step or in an earlier one. The flag keeps its value, and no update is
  // applied, until the host clears the flag.
  std::int64_t suppressed = 0;
  std::int64_t stops[kStopCounters] = {};  // counters of this step, over all ranks
};

// Returns min(1, limit / (norm + 1e-6)), or 1 if the limit is 0 or the norm is NaN.
TESSERA_HOST_DEVICE inline double clip_factor(double norm, double limit) {
  const double factor = limit / (norm + 1e-6);
  return limit != 0 && factor < 1 ? factor : 1.0;
}

// Makes the decision of a step. `stops` holds kStopCounters counters of the step over all ranks, at least 0. The
// counters are reset to 0 for the next step.
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
