// The time of a rank's host: the steady clock, or the virtual clock if there is one.
#pragma once
#include "tessera/base/clock.h"
#include "tessera/shard/parallel_groups.h"

namespace tessera::shard {

inline double host_seconds(const ParallelGroups& parallel) {
  return base::seconds_on(parallel.clock.get());
}

}  // namespace tessera::shard
