// What time it is for a rank: the steady clock, or a virtual one.
#pragma once
#include "tessera/base/clock.h"
#include "tessera/shard/parallel.h"

namespace tessera::shard {

inline double host_seconds(const Parallel& parallel) {
  return base::seconds_on(parallel.clock.get());
}

}  // namespace tessera::shard
