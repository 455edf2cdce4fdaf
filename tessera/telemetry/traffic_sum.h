// Combines the metrics of a step over all ranks, asynchronously, with the waits and stop requests of the ranks.
#pragma once
#include <optional>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/telemetry/gpu/gpu_monitor.h"
#include "tessera/telemetry/metric.h"

namespace tessera::telemetry {

// At most one sum is in flight. The object must outlive the communicator's lane while a sum is in flight.
class TrafficSum {
 public:
  // Collective over `world`. Enqueues the sum. `own` has the values of this rank. `stop_requested`: whether this rank's
  // process received a request to stop. `gpu`: the state of this rank's GPU, if it was read in this step.
  void start(const StepMetrics& own, bool stop_requested, const std::optional<GpuReading>& gpu,
             comm::Communicator& world);
  // Waits for the sum and writes it to `metrics`.
  void finish(StepMetrics& metrics) const;
  // Called after finish. Returns true on every rank if `stop_requested` was true on any rank.
  bool is_any_stop_requested() const { return sums_.front() > 0; }

 private:
  // The number of ranks with a stop request, the metrics that ranks combine, and the values of each rank (rank_sums.h).
  std::vector<double> sums_{0};
  int ranks_ = 1;
  base::Fence summed_;
};

// Combines the metrics of several steps. Collective over `world`; each rank passes its own values of the same steps.
void combine_over_ranks(std::vector<StepMetrics>& steps, comm::Communicator& world);

}  // namespace tessera::telemetry
