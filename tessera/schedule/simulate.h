// Predicts the time of a schedule from given durations. The functions are pure. The simulator uses the semantics that
// Runtime executes and check.h proves. All ranks are assumed to be equally fast.
#pragma once
#include <cstddef>
#include <vector>

#include "tessera/schedule/activity.h"
#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

// The lanes of a domain's hops, by number. Hops with equal numbers share a lane, whose transfers run one after another.
struct DomainLanes {
  int gather = 0, gather_compute = 0, reduce_compute = 0, reduce = 0, replicas = 0;
};

// Durations in seconds. An index beyond the end of a vector has the duration 0.
struct Costs {
  std::vector<double> segment_seconds;  // by event: compute time before the event
  std::vector<double> comm_seconds;     // by event: time of a collective of the program; collectives run one at a time
  // By event of a collective: the last event before compute waits for the collective. Default: the collective's event.
  std::vector<int> comm_waits;
  std::vector<DomainLanes> lanes;  // by domain; empty: every hop of every domain has a lane of its own
  bool shared_link = false;  // true: a rank has one transfer at a time, in order of start; false: one for each lane
  double end_seconds = 0;    // time of the comparison between ranks at the end of the body, for which compute waits
  std::vector<double> publish_seconds;  // by event: time to exchange the published weight between replicas (ZeRO-1)
  // By gather unit: time of the first hop, time of the second hop.
  std::vector<double> gather_seconds, gather_compute_seconds;
  // By reduce unit: first hop, second hop, sum over replicas.
  std::vector<double> reduce_compute_seconds, reduce_seconds, replica_seconds;
};

// An interval in which a lane is busy. The activities comm and agreement do not occur. `index` is an event for compute
// and publish, a residency for gather and gather_compute, and a reduction for the other lanes.
struct Span {
  Activity lane = Activity::compute;
  int index = 0;
  double begin = 0, end = 0;  // seconds from the beginning of the step; negative for prefetches before the step
};

struct Prediction {
  double step_seconds = 0;
  double compute_seconds = 0;  // sum of the segments
  // Time that compute waits for gathers, for reductions, and for the program's collectives.
  double gather_exposed_seconds = 0, reduce_exposed_seconds = 0, comm_exposed_seconds = 0;
  std::vector<Span> spans;    // spans of one step in the steady state, in order of time within each lane
  std::vector<double> waits;  // by event: seconds that compute waits at the event

  double exposed_seconds() const { return gather_exposed_seconds + reduce_exposed_seconds + comm_exposed_seconds; }
};

// Returns the lanes of each domain of the schedule.
std::vector<DomainLanes> lanes_of(const Schedule& schedule, const Costs& costs);
// Returns a number that is greater than every lane's number.
std::size_t number_of_lanes(const std::vector<DomainLanes>& lanes);

// Predicts a step in the steady state, where steps follow each other without a pause.
Prediction simulate(const Trace& trace, const Schedule& schedule, const Costs& costs);
// Predicts the same work without a schedule: each gather runs at its consume, and all exchanges of gradients run at the
// end of their microbatch (a run does most exchanges earlier, which takes the same time). Compute waits for the gathers
// and the exchanges. Only exchanges of new weights overlap with the optimizer.
Prediction simulate_on_demand(const Trace& trace, const Schedule& schedule, const Costs& costs);

}  // namespace tessera::schedule
