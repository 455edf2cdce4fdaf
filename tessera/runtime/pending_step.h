// A step that compute has been given, and need not have come to: what Runtime::finish takes.
#pragma once
#include <cstdint>

#include "tessera/base/fence.h"
#include "tessera/runtime/fence_pairs.h"
#include "tessera/runtime/statistics.h"

namespace tessera::runtime {

struct PendingStep {
  std::int64_t number = 0;    // of the runtime's steps
  base::Fence end;            // compute has done all that it has been given
  StepStatistics statistics;  // but for the waits
  FencePairs waits;           // compute's lane before and after each; where it is a queue
};

}  // namespace tessera::runtime
