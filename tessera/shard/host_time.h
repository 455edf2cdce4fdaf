// What time it is for a rank: the steady clock, or the virtual one.
#pragma once
#include <chrono>

#include "tessera/shard/parallel.h"

namespace tessera::shard {

inline double host_seconds(const Parallel& parallel) {
  if (parallel.clock) return parallel.clock->now();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Adds the time until destruction to `seconds`.
class Stopwatch {
 public:
  Stopwatch(const Parallel& parallel, double& seconds)
      : parallel_(parallel), seconds_(seconds), start_(host_seconds(parallel)) {}
  ~Stopwatch() { seconds_ += host_seconds(parallel_) - start_; }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  const Parallel& parallel_;
  double& seconds_;
  double start_;
};

}  // namespace tessera::shard
