// Combines the metrics of a step over all ranks, asynchronously, with the waits and requests of the ranks.
#pragma once
#include <optional>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/telemetry/gpu/gpu_monitor.h"
#include "tessera/telemetry/metric.h"

namespace tessera::telemetry {

// The requests of a rank between two steps.
struct Requests {
  bool stop = false, save = false;
};

// At most one sum is in flight. The object must outlive the communicator's lane while a sum is in flight.
class TrafficSum {
 public:
  // Collective over `world`. Enqueues the sum. `own` has the values of this rank, and `requests` its requests. `gpu`:
  // the state of this rank's GPU, if it was read in this step.
  void start(const StepMetrics& own, const Requests& requests, const std::optional<GpuReading>& gpu,
             comm::Communicator& world);
  // Waits for the sum and writes it to `metrics`.
  void finish(StepMetrics& metrics) const;
  // Called after finish. Returns, on every rank, the requests of all ranks together.
  Requests requests() const { return {.stop = sums_[0] > 0, .save = sums_[1] > 0}; }

 private:
  // The numbers of ranks that request a stop and a save, the metrics that ranks combine, and the values of each rank
  // (rank_sums.h).
  std::vector<double> sums_{0, 0};
  int ranks_ = 1;
  base::Fence summed_;
};

// Combines the metrics of several steps. Collective over `world`; each rank passes its own values of the same steps.
void combine_over_ranks(std::vector<StepMetrics>& steps, comm::Communicator& world);

}  // namespace tessera::telemetry
