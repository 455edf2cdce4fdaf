// The decision about the update of a step, made from the step's gradient norm and its stop counters. The CPU and CUDA
// give the same bits.
#pragma once
#include <cmath>
#include <cstdint>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/host_device.h"

namespace tessera::ops {

// The number of stop counters. Each stop counter counts one condition that must stop an update.
inline constexpr int kStopCounters = 8;

// The decision about the update of the last step. It is stored in the memory of the device that runs the updates.
struct Clip {
  double norm = 0;    // norm of the whole gradient before clipping
  double factor = 1;  // the gradient is multiplied by this factor
  // 0: the update changes no value. The step is either skipped (its norm is infinite or NaN) or suppressed.
  std::int32_t applies = 1;
  // Not 0 if a stop counter was above 0 in this step or in an earlier step. Until the host clears this flag, no update
  // is applied.
  std::int64_t suppressed = 0;
  std::int64_t stops[kStopCounters] = {};  // stop counters of this step, summed over all ranks
};

// Returns min(1, limit / (norm + 1e-6)), or 1 if the limit is 0 or the norm is NaN.
TESSERA_HOST_DEVICE inline double clip_factor(double norm, double limit) {
  const double factor = limit / (norm + 1e-6);
  return limit != 0 && factor < 1 ? factor : 1.0;
}

// Makes the decision of a step. `stops` holds the kStopCounters stop counters of the step, summed over all ranks. No
// counter is negative. The function resets the counters to 0 for the next step.
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

namespace cuda {
// Computes ops::decide_update on the device. All pointers point to device memory.
void decide_update(const double* sum_of_squares, double limit, std::int64_t* stops, Clip* clip,
                   base::CudaStream stream);
}  // namespace cuda

}  // namespace tessera::ops
