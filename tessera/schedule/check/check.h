// The checker proves that a schedule is correct for any durations of the lanes' work. The checker depends on the
// definition of a schedule (schedule.h) and not on the planner.
//
// Method. The checker processes the operations of a few steps in the order in which the host enqueues them. It keeps
// vector clocks over the lanes: compute, and for each domain gather, exchange, sum and replicas. If two operations
// access the same bytes (of arenas, scratch, shards or main_grad) and one of them writes, waits must order the two
// operations. If waits order all such pairs, every execution has the result of the host's order. In the host's order
// the checker requires:
// - every consume or release event finds the newest version of its unit's weights,
// - every unpacking finds its packed bytes,
// - every columnwise copy is made from the newest version of its unit's weights, and every consume or release event of
// a
//   backward pass finds the copy of this step and of this version,
// - every produce event finds its staging; a gradient without staging is produced once a step,
// - every main_grad receives each produced gradient once.
// The end of an interval counts as a write, because a debug mode writes NaN to the interval. Every wait is for work
// that the host has enqueued before, so one rank alone cannot deadlock. together.h checks several ranks.
//
// The checker replays four steps. The first step issues its prefetches at its beginning. The second and the third step
// follow a step with the optimizer's events, where their prefetches are issued. The fourth step follows a step without
// optimizer events, so its prefetches are issued at its beginning. If the optimizer's events are missing, a wait for a
// negative position waits for the beginning of the step. More steps would not find more errors: only main_grad, shards
// and prefetches outlive a body, and every step leaves them in the same state.
#pragma once
#include <string>
#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

// Returns an empty vector if the schedule is correct. Otherwise returns about ten faults at most, one per string. A
// fault contains the place, the expected value and the actual value. `sizes` is indexed by parameter id. Takes O(n log
// n) time for n events.
std::vector<std::string> check(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule);

}  // namespace tessera::schedule
