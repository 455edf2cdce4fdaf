// Sums a step's traffic, waits and stop requests over all ranks while the ranks continue.
#pragma once
#include <array>

#include "tessera/comm/communicator.h"
#include "tessera/run/metrics/metrics.h"
#include "tessera/runtime/watch/statistics.h"

namespace tessera::run {

// One sum at a time. The object must outlive the communicator's lane while a sum is in flight.
class TrafficSum {
 public:
  // Collective over `world`. Enqueues the sum. `asked_to_stop`: whether this rank was asked to stop the run.
  void start(const runtime::StepStatistics& own, bool asked_to_stop, comm::Communicator& world);
  // Waits for the sum and writes it to `metrics`.
  void finish(StepMetrics& metrics) const;
  // Called after finish. Returns true on every rank if any rank was asked to stop.
  bool any_asked_to_stop() const { return sums_.back() > 0; }

 private:
  // Exposed milliseconds; bytes gathered; bytes reduced; gathered bytes, flops and activation bytes by format; number
  // of ranks that were asked to stop.
  std::array<double, 3 + 3 * quant::kFormats + 1> sums_{};
  int ranks_ = 1;
  base::Fence summed_;
};

}  // namespace tessera::run
