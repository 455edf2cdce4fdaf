// What a schedule must be before its lanes can be played through: indices that exist, orders as documented, sizes that
// hold what lies in them, and for every produce the one reduction that takes it.
#pragma once
#include <vector>

#include "tessera/schedule/check/faults.h"

namespace tessera::schedule {

inline constexpr int kNoUnit = -1;

// unit_of[parameter], kNoUnit where none. Members that do not exist are left out.
std::vector<int> units_by_parameter(const std::vector<Unit>& units, std::size_t parameters);

// The trace is the one that the schedule is for, and a step: its body, then the optimizer's events; of parameters that
// exist.
void check_trace(const Trace& trace, std::size_t parameters, const Schedule& schedule, CheckFaults& faults);
// Units, their bytes, the scratch.
void check_units(const std::vector<ParameterSize>& sizes, const Schedule& schedule, CheckFaults& faults);
// Each residency and each reduction by itself, their order, the arenas' sizes. Needs units that exist.
void check_residencies(const Trace& trace, const Schedule& schedule, CheckFaults& faults);
void check_reductions(const Trace& trace, const Schedule& schedule, CheckFaults& faults);
// By event: the reduction that takes what is produced there, -1 elsewhere. Faults: a gradient that no reduction takes
// or two do. Needs reductions that are right by themselves.
std::vector<int> match_produces(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule,
                                CheckFaults& faults);

}  // namespace tessera::schedule
