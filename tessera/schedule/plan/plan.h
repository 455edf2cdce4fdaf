// The planner: from a trace, sizes and budgets to a schedule. Pure: no tensors, no communication, no clock, no costs;
// the same input gives the same schedule on every rank.
//
// Gathers are laid out in the order of need. A weight that is still in the arena when it is needed again stays; where
// bytes are needed, the weights used again last make room (Belady's rule), and among those that are not used again the
// one released first. A gather is issued as soon as its bytes are free and its weights are published, never before an
// earlier one. Packed bytes make room as soon as they are unpacked; the unpacked ones are given their place then.
// Gradient staging takes the bytes whose reduction was issued longest ago.
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

inline constexpr std::int64_t kMinimum = 0;  // as a budget: the smallest that can run
inline constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();
inline constexpr std::int64_t kArenaAlignment = 256;  // bytes; of every offset in an arena

struct ScheduleOptions {
  std::int64_t gather_budget = kUnlimited;  // bytes of the gather arena
  std::int64_t reduce_budget = kUnlimited;  // bytes of the reduce arena and its scratch together
  std::int64_t coalesce_bytes = 0;          // neighbours travel together up to this; 0: every parameter by itself
};

// sizes by parameter id. Errors: InputError for a budget below the smallest that can run (the message names both);
// Error for a trace that cannot be planned: a release without its consume, a publish inside the body.
Schedule plan(const Trace& trace, const std::vector<ParameterSize>& sizes, const ScheduleOptions& options);

// The parts of plan(): each fills its fields of the schedule, whose units, bytes and trace fields are set.
void plan_units(const Trace& trace, const std::vector<ParameterSize>& sizes, std::int64_t coalesce_bytes,
                Schedule& schedule);
void plan_gathers(const Trace& trace, std::int64_t budget, Schedule& schedule);
void plan_reductions(const Trace& trace, std::int64_t budget, Schedule& schedule);

}  // namespace tessera::schedule
