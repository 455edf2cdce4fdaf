// What a step moved and waited for.
#pragma once
#include <cstdint>

namespace tessera::runtime {

// Since the last begin_step, on this rank.
struct StepStatistics {
  std::int64_t gathered_bytes = 0, reduced_bytes = 0;  // received from other ranks
  // Compute waited for communication. NaN where compute is a GPU's and the step was recorded or its waits were not
  // measured.
  double exposed_seconds = 0;
  std::int64_t demand_gathers = 0;  // gathers that no schedule foresaw
  bool recorded = false;            // the step had no schedule
  bool departed = false;            // the step left its schedule
  int unproduced = 0;               // trainable parameters without a gradient in the whole step
};

}  // namespace tessera::runtime
