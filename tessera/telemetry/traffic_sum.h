// Sums the traffic, waits and stop requests of a step over all ranks, asynchronously.
#pragma once
#include <optional>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/runtime/watch/statistics.h"
#include "tessera/telemetry/gpu/gpu_monitor.h"
#include "tessera/telemetry/metrics.h"

namespace tessera::telemetry {

// At most one sum is in flight. The object must outlive the communicator's lane while a sum is in flight.
class TrafficSum {
 public:
  // Collective over `world`. Enqueues the sum. `stop_requested`: whether this rank's process received a request to
  // stop. `gpu`: the state of this rank's GPU, if it was read in this step.
  void start(const runtime::StepStatistics& own, bool stop_requested, const std::optional<GpuReading>& gpu,
             comm::Communicator& world);
  // Waits for the sum and writes it to `metrics`.
  void finish(StepMetrics& metrics) const;
  // Called after finish. Returns true on every rank if `stop_requested` was true on any rank.
  bool is_any_stop_requested() const { return sums_[kStopRequested] > 0; }

 private:
  // The order of the numbers in sums_: exposed milliseconds; their part for activations; gathered bytes; reduced bytes;
  // gathered bytes, flops and activation bytes by format; number of ranks with a stop request; the values of each rank
  // (rank_sums.h).
  static constexpr std::size_t kStopRequested = 4 + 3 * quant::kFormats, kShared = kStopRequested + 1;
  std::vector<double> sums_ = std::vector<double>(kShared);
  int ranks_ = 1;
  base::Fence summed_;
};

}  // namespace tessera::telemetry
