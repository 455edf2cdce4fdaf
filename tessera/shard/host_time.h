// What time it is for a rank or one of its lanes: the steady clock, or a virtual one.
#pragma once
#include <chrono>

#include "tessera/shard/parallel.h"

namespace tessera::shard {

// `clock`: null where time is real.
inline double seconds_on(const base::VirtualClock* clock) {
  if (clock) return clock->now();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double host_seconds(const Parallel& parallel) {
  return seconds_on(parallel.clock.get());
}

}  // namespace tessera::shard
