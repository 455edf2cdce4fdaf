// The checker: proves a schedule right for every speed of its lanes. It knows the schedule's meaning (schedule.h) and
// nothing of the planner; durations are no input.
//
// The argument. The steps are enqueued in the host's order with vector clocks over the lanes: compute, and of each
// domain gathers, exchanges, sums and sums over replicas. Every pair of accesses to the same bytes (arenas, scratch,
// shards, main_grad) of which one writes must be ordered by waits; then every execution gives what the host's order
// gives, and in that order every consume and release must find its unit's weights of the newest version, every
// unpacking its packed bytes, every produce its staging, every main_grad each produced gradient once. The end of an
// interval counts as a write (poison). Waits refer to what the host has enqueued before, so one rank alone cannot
// deadlock; together.h does the ranks together.
//
// Steps: a first one, whose prefetches are issued at its beginning; one after it; one after that; and one after an
// optimizer step that was skipped, so that prefetches not yet issued are issued at its beginning. A wait for a negative
// position that did not come waits for the beginning of the step. More steps add nothing: beyond the cut
// behind the body only main_grad, shards and prefetches live on, and every step leaves them as the one before.
#pragma once
#include <string>
#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

// Empty: proved. Otherwise what is wrong, one fault a string (what, where, expected, got), about ten at most.
// sizes by parameter id. Time n log n of events.
std::vector<std::string> check(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule);

}  // namespace tessera::schedule
