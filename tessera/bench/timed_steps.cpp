#include "tessera/bench/timed_steps.h"

#include <chrono>
#include <thread>

namespace tessera::bench {

void pass_time(const shard::ParallelGroups& parallel, double seconds) {
  if (parallel.clock)
    parallel.clock->advance(seconds);
  else
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

}  // namespace tessera::bench
