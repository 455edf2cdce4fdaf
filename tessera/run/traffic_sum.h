// What a step moved and waited for, and how many ranks were asked to stop, summed over all ranks while they continue.
#pragma once
#include <array>

#include "tessera/comm/communicator.h"
#include "tessera/run/metrics/metrics.h"
#include "tessera/runtime/statistics.h"

namespace tessera::run {

// One sum at a time. It must outlive the communicator's lane while one is under way.
class TrafficSum {
 public:
  // Collective over `world`. Enqueues. asked_to_stop: whether this rank was asked to stop the run.
  void start(const runtime::StepStatistics& own, bool asked_to_stop, comm::Communicator& world);
  // Waits, and writes the sum that start began.
  void finish(StepMetrics& metrics) const;
  // After finish: whether any rank was asked to stop, the same on every rank.
  bool any_asked_to_stop() const { return sums_.back() > 0; }

 private:
  // Milliseconds exposed, bytes gathered, reduced; by format: gathered, flops, activations; ranks asked to stop.
  std::array<double, 3 + 3 * quant::kFormats + 1> sums_{};
  int ranks_ = 1;
  base::Fence summed_;
};

}  // namespace tessera::run
