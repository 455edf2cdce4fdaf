// The host time of a rank: from the steady clock, or from a virtual clock.
#pragma once
#include "tessera/base/clock.h"
#include "tessera/shard/parallel_groups.h"

namespace tessera::shard {

inline double host_seconds(const ParallelGroups& parallel) {
  return base::seconds_on(parallel.clock.get());
}

}  // namespace tessera::shard
