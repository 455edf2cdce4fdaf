// Sums a step's traffic, waits and stop requests over all ranks while the ranks continue.
#pragma once
#include <optional>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/run/metrics/gpu_monitor.h"
#include "tessera/run/metrics/metrics.h"
#include "tessera/runtime/watch/statistics.h"

namespace tessera::run {

// At most one sum is in flight. The object must outlive the communicator's lane while a sum is in flight.
class TrafficSum {
 public:
  // Collective over `world`. Enqueues the sum. `stop_requested`: whether this rank was asked to stop the run. `gpu`: a
  // reading of this rank's GPU, if there is one for this step.
  void start(const runtime::StepStatistics& own, bool stop_requested, const std::optional<GpuReading>& gpu,
             comm::Communicator& world);
  // Waits for the sum and writes it to `metrics`.
  void finish(StepMetrics& metrics) const;
  // Called after finish. Returns true on every rank if any rank was asked to stop.
  bool is_any_stop_requested() const { return sums_[kStopRequested] > 0; }

 private:
  // Exposed milliseconds; bytes gathered; bytes reduced; gathered bytes, flops and activation bytes by format; number
  // of ranks that were asked to stop; then the values of each rank (rank_sums.h).
  static constexpr std::size_t kStopRequested = 3 + 3 * quant::kFormats, kShared = kStopRequested + 1;
  std::vector<double> sums_ = std::vector<double>(kShared);
  int ranks_ = 1;
  base::Fence summed_;
};

}  // namespace tessera::run
