// The state of one GPU, or of all GPUs of a run.
#pragma once
#include <cstdint>

namespace tessera::telemetry {

struct GpuReading {
  double clock_mhz = 0;     // clock of the multiprocessors; for several GPUs, the lowest clock
  double power_w = 0;       // power in watts; for several GPUs, the sum
  std::int64_t errors = 0;  // uncorrected memory errors since the driver was loaded; for several GPUs, the sum
};

}  // namespace tessera::telemetry
