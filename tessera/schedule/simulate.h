// Predicts the time of a schedule from given durations. The functions are pure. The simulator follows the definition of
// a schedule (schedule.h), as Runtime and check.h do. All ranks are assumed to be equally fast.
#pragma once
#include <cstddef>
#include <vector>

#include "tessera/schedule/activity.h"
#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

// The lane numbers of a domain's hops. Hops with equal numbers share a lane. The transfers of a lane run one after
// another.
struct DomainLanes {
  int gather = 0, gather_compute = 0, reduce_compute = 0, reduce = 0, replicas = 0;
};

// Durations in seconds. Entries beyond the end of a vector are 0.
struct Costs {
  std::vector<double> segment_seconds;  // by event: compute time before the event
  std::vector<double> comm_seconds;     // by event: time of the program's collective; collectives run one at a time
  // By event of a collective: the last event before compute waits for the collective. A missing entry means the event
  // of the collective.
  std::vector<int> comm_waits;
  std::vector<DomainLanes> lanes;  // by domain; empty: every hop of every domain has a separate lane
  // true: a rank runs one transfer at a time, in order of start; false: one transfer at a time per lane.
  bool shared_link = false;
  // Time of the comparison between ranks at the end of the body; compute waits for the comparison.
  double end_seconds = 0;
  std::vector<double> publish_seconds;  // by event: time to exchange the published weight between replicas (ZeRO-1)
  // By gather unit: times of the first hop and of the second hop.
  std::vector<double> gather_seconds, gather_compute_seconds;
  // By reduce unit: times of the first hop, of the second hop, and of the sum over replicas.
  std::vector<double> reduce_compute_seconds, reduce_seconds, replica_seconds;
};

// An interval in which a lane is busy. `lane` is never comm or agreement. `index` is the index of an event for compute
// and publish event, of a residency for gather and gather_compute, and of a reduction for the other lanes.
struct Span {
  Activity lane = Activity::compute;
  int index = 0;
  double begin = 0, end = 0;  // seconds since the beginning of the step; negative for prefetches before the step
};

struct Prediction {
  double step_seconds = 0;
  double compute_seconds = 0;  // sum of the segments' times
  // Times that compute waits for gathers, for reductions, and for the program's collectives.
  double gather_exposed_seconds = 0, reduce_exposed_seconds = 0, comm_exposed_seconds = 0;
  std::vector<Span> spans;    // spans of one step in the steady state, in order of time within each lane
  std::vector<double> waits;  // by event: seconds that compute waits at the event

  double exposed_seconds() const { return gather_exposed_seconds + reduce_exposed_seconds + comm_exposed_seconds; }
};

// Returns the lanes of each domain of the schedule.
std::vector<DomainLanes> lanes_of(const Schedule& schedule, const Costs& costs);
// Returns the largest lane number plus 1.
std::size_t number_of_lanes(const std::vector<DomainLanes>& lanes);

// Predicts a step in the steady state, where steps follow each other without a pause.
Prediction simulate(const Trace& trace, const Schedule& schedule, const Costs& costs);
// Predicts the same work without a schedule. Each gather runs at its consume event, and all exchanges of gradients run
// at the end of their microbatch. (A run does most exchanges earlier, with the same total time.) Compute waits for the
// gathers and the exchanges. Only exchanges of new weights overlap with the optimizer.
Prediction simulate_on_demand(const Trace& trace, const Schedule& schedule, const Costs& costs);

}  // namespace tessera::schedule
