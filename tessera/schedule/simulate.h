// What a schedule takes in time: the lanes played through with agreed durations. Pure; the same semantics that Runtime
// carries out and check.h proves. Every rank is taken to be as fast as every other.
#pragma once
#include <vector>

#include "tessera/schedule/activity.h"
#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

// Seconds. Vectors shorter than asked for count as zeros.
struct Costs {
  std::vector<double> segment_seconds;  // by event: compute before it
  std::vector<double> comm_seconds;     // by event: a collective of the program, one after the other
  // By event of a collective: the last event that happens before compute waits for it. What is not given: its own.
  std::vector<int> comm_waits;
  bool shared_link = false;             // a rank's transfers take turns, in the order of their beginning; else lanes do
  double end_seconds = 0;               // behind the body: what ranks compare there, which compute waits for
  std::vector<double> publish_seconds;  // by event: replicas give each other the weight that was published (ZeRO-1)
  std::vector<double> gather_seconds, gather_compute_seconds;                   // by gather unit: first hop, second
  std::vector<double> reduce_compute_seconds, reduce_seconds, replica_seconds;  // by reduce unit: hops, then replicas
};

// Something that takes a lane's time; comm and agreement have no lane. index: an event on compute and publish; a
// residency on gather and gather_compute; a reduction on the others.
struct Span {
  Activity lane = Activity::compute;
  int index = 0;
  double begin = 0, end = 0;  // seconds from the beginning of the step; gathers for this step may begin before it
};

struct Prediction {
  double step_seconds = 0;
  double compute_seconds = 0;  // of the segments alone
  // Compute waited for gathers, reductions, the program's collectives.
  double gather_exposed_seconds = 0, reduce_exposed_seconds = 0, comm_exposed_seconds = 0;
  std::vector<Span> spans;    // of one step in the steady state, by lane in order
  std::vector<double> waits;  // by event: how long compute waited before it

  double exposed_seconds() const { return gather_exposed_seconds + reduce_exposed_seconds + comm_exposed_seconds; }
};

// The steady state: steps follow each other without a pause.
Prediction simulate(const Trace& trace, const Schedule& schedule, const Costs& costs);
// The same work with every gather at its consume and every exchange at the end of its microbatch, compute waiting; only
// exchanges of new weights travel while the optimizer goes on.
Prediction simulate_on_demand(const Trace& trace, const Schedule& schedule, const Costs& costs);

}  // namespace tessera::schedule
