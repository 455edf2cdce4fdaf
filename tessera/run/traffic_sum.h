// What a step moved and waited for, summed over all ranks while they go on.
#pragma once
#include <array>

#include "tessera/comm/communicator.h"
#include "tessera/run/metrics/metrics.h"
#include "tessera/runtime/statistics.h"

namespace tessera::run {

// One sum at a time. It must outlive the communicator's lane while one is under way.
class TrafficSum {
 public:
  // Collective over `world`. Enqueues.
  void start(const runtime::StepStatistics& own, comm::Communicator& world);
  // Waits, and writes the sum that start began.
  void finish(StepMetrics& metrics) const;

 private:
  // Milliseconds exposed, bytes gathered, reduced; by format: gathered, flops, activations.
  std::array<double, 3 + 3 * quant::kFormats> sums_{};
  int ranks_ = 1;
  base::Fence summed_;
};

}  // namespace tessera::run
