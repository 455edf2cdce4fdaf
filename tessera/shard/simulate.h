// What a schedule takes in time: the lanes played through with agreed durations. Pure; the same semantics that Runtime
// carries out and check.h proves. Every rank is taken to be as fast as every other.
#pragma once
#include <string>
#include <vector>

#include "tessera/shard/schedule.h"

namespace tessera::shard {

// Seconds. Vectors shorter than asked for count as zeros.
struct Costs {
  std::vector<double> segment_seconds;  // by event: compute before it
  std::vector<double> comm_seconds;     // by event: a collective of the program, which compute waits for
  std::vector<double> gather_seconds;   // by gather unit
  std::vector<double> reduce_seconds, replica_seconds;  // by reduce unit: over gtp; over dp
};

enum class LaneKind : std::uint8_t { compute, gather, reduce, dp };

// Something that takes a lane's time. index: an event on compute, a residency on gather, a reduction on reduce and dp.
struct Span {
  LaneKind lane = LaneKind::compute;
  int index = 0;
  double begin = 0, end = 0;  // seconds from the beginning of the step; gathers for this step may begin before it
};

struct Prediction {
  double step_seconds = 0;
  double compute_seconds = 0;  // of the segments alone
  double exposed_seconds = 0;  // compute waited for gathers, reductions and the program's collectives
  double gather_exposed_seconds = 0, reduce_exposed_seconds = 0, comm_exposed_seconds = 0;  // its parts
  std::vector<Span> spans;    // of one step in the steady state, by lane in order
  std::vector<double> waits;  // by event: how long compute waited before it
};

// The steady state: steps follow each other without a pause.
Prediction simulate(const Trace& trace, const Schedule& schedule, const Costs& costs);
// The same work with every gather at its consume and every exchange at the end of its microbatch, compute waiting.
Prediction simulate_on_demand(const Trace& trace, const Schedule& schedule, const Costs& costs);

std::string_view name_of(LaneKind lane);

}  // namespace tessera::shard
