// The planner computes a schedule from a trace, sizes and budgets. The planner is pure. It uses no tensors,
// communication, clocks or durations. Equal inputs give equal schedules on every rank.
//
// The planner assigns arena bytes to weights in the order of their uses. A weight that is still in the arena at its
// next use is not gathered again. If bytes are needed, the planner evicts the weights whose next use is farthest away
// (Belady's rule). Among weights that are not used again, it evicts the weight that was released first. A gather is
// issued as soon as its bytes are free and its weights are published, but not before an earlier gather. Packed bytes
// become free when they are unpacked. Unpacked bytes are assigned at the time of unpacking, and the bytes of a
// columnwise copy when the copy is made. A copy is kept for later backward passes of its residency if no weight needs
// the bytes: copies are evicted before weights. A copy whose weight is evicted is evicted too. The staging of a
// gradient reuses the bytes whose reduction was issued longest ago.
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

inline constexpr std::int64_t kMinimum = 0;  // as a budget: the smallest budget that can run
inline constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();
inline constexpr std::int64_t kArenaAlignment = 256;  // bytes; alignment of all offsets in an arena

struct ScheduleOptions {
  std::int64_t gather_budget = kUnlimited;  // bytes of the gather arena
  std::int64_t reduce_budget = kUnlimited;  // bytes of the reduce arena and the scratch together
  std::int64_t coalesce_bytes = 0;  // maximum bytes of a unit with several parameters; 0: one parameter per unit
};

// Plans a schedule. `sizes` is indexed by parameter id. Throws InputError for a budget below the smallest budget that
// can run; the message contains both numbers. Throws Error for: a release event without its consume event; a publish
// event inside the body.
Schedule plan(const Trace& trace, const std::vector<ParameterSize>& sizes, const ScheduleOptions& options);

// The three parts of plan(). Each function sets its own fields of the schedule. plan_units reads the fields that
// describe the trace. plan_gathers and plan_reductions also read the units and their bytes.
void plan_units(const Trace& trace, const std::vector<ParameterSize>& sizes, std::int64_t coalesce_bytes,
                Schedule& schedule);
void plan_gathers(const Trace& trace, std::int64_t budget, Schedule& schedule);
void plan_reductions(const Trace& trace, std::int64_t budget, Schedule& schedule);

}  // namespace tessera::schedule
