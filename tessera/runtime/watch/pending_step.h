// A step that the host has enqueued and that compute may not have finished. Runtime::finish waits for the step.
#pragma once
#include <cstdint>

#include "tessera/base/lanes/fence.h"
#include "tessera/runtime/watch/fence_pairs.h"
#include "tessera/runtime/watch/statistics.h"

namespace tessera::runtime {

struct PendingStep {
  std::int64_t number = 0;    // number of the step in the runtime's order
  base::Fence end;            // done when compute has finished the step
  StepStatistics statistics;  // statistics of the step; the exposed seconds do not include the waits below
  // On a GPU: all waits of compute's lane, and its waits for collectives of the program.
  FencePairs waits, program_waits;
};

}  // namespace tessera::runtime
