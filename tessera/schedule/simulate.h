// Predicts the time of a schedule from given durations. The functions are pure. The simulator follows the definition of
// a schedule (schedule.h), as Runtime and check.h do. All ranks are assumed to be equally fast.
#pragma once
#include <cstddef>
#include <optional>
#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

// By hop: its lane in one domain. Hops with equal numbers share a lane. The transfers of a lane run one after
// another.
using Lanes = mesh::ByTransfer<int>;

// Durations in seconds. Entries beyond the end of a vector are 0.
struct Costs {
  std::vector<double> segment_seconds;  // by event: compute time before the event
  std::vector<double> comm_seconds;     // by event: time of the program's collective; collectives run one at a time
  std::vector<double> copy_seconds;     // by gather unit: time in which compute makes the columnwise copies of the unit
  // By event of a collective: the last event before compute waits for the collective. A missing entry means the event
  // of the collective.
  std::vector<int> comm_waits;
  std::vector<Lanes> lanes;  // by domain; empty: every hop of every domain has a separate lane
  // true: a rank runs one transfer at a time, in order of start; false: one transfer at a time per lane.
  bool shared_link = false;
  // Time of the comparison between ranks at the end of the body; compute waits for the comparison.
  double end_seconds = 0;
  // Times of the hops. `gather` and `gather_compute`: by gather unit. `publish`: by event, the time to exchange the
  // published weight between replicas (ZeRO-1). Other hops: by reduce unit.
  mesh::ByTransfer<std::vector<double>> seconds;
};

// An interval in which compute or a hop's lane is busy. `index` is the index of an event for compute and publish
// events, of a columnwise copy for compute that makes it, of a residency for gather and gather_compute, and of a
// reduction for the other hops.
struct Span {
  std::optional<mesh::Transfer> hop;  // nullopt: compute
  int index = 0;
  double begin = 0, end = 0;  // seconds since the beginning of the step; negative for prefetches before the step
  bool is_copy = false;       // whether compute makes a columnwise copy
};

struct Prediction {
  double step_seconds = 0;
  double compute_seconds = 0;  // sum of the times of segments and of columnwise copies
  // Times that compute waits for gathers, for reductions, and for the program's collectives.
  double gather_exposed_seconds = 0, reduce_exposed_seconds = 0, comm_exposed_seconds = 0;
  std::vector<Span> spans;    // spans of one step in the steady state, in order of time within each lane
  std::vector<double> waits;  // by event: seconds that compute waits at the event

  double exposed_seconds() const { return gather_exposed_seconds + reduce_exposed_seconds + comm_exposed_seconds; }
};

// Returns the lanes of each domain of the schedule.
std::vector<Lanes> lanes_of(const Schedule& schedule, const Costs& costs);
// Returns the largest lane number plus 1.
std::size_t number_of_lanes(const std::vector<Lanes>& lanes);

// Predicts a step in the steady state, where steps follow each other without a pause.
Prediction simulate(const Trace& trace, const Schedule& schedule, const Costs& costs);
// Predicts the same work without a schedule. Each gather runs at its consume event, and all exchanges of gradients run
// at the end of their microbatch. (A run does most exchanges earlier, with the same total time.) Compute waits for the
// gathers and the exchanges. Only exchanges of new weights overlap with the optimizer.
Prediction simulate_on_demand(const Trace& trace, const Schedule& schedule, const Costs& costs);

}  // namespace tessera::schedule
