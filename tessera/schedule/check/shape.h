// Checks that a schedule must pass before its lanes are replayed. Indices must exist, lists must have the documented
// order, arenas and units must be large enough, and exactly one reduction must take each produced gradient.
#pragma once
#include <vector>

#include "tessera/schedule/check/faults.h"

namespace tessera::schedule {

inline constexpr int kNoUnit = -1;

// Returns the unit of each parameter, or kNoUnit. Ignores members that do not exist.
std::vector<int> units_by_parameter(const std::vector<Unit>& units, std::size_t parameters);

// Checks that the schedule is for this trace, that the optimizer's events follow a body, and that all parameters exist.
void check_trace(const Trace& trace, std::size_t parameters, const Schedule& schedule, CheckFaults& faults);
// Checks the units, their bytes and the scratch.
void check_units(const std::vector<ParameterSize>& sizes, const Schedule& schedule, CheckFaults& faults);
// Check each residency, each columnwise copy and each reduction alone, their order, and the sizes of the arenas. The
// units must exist. check_copies also checks that a copy of a gathered unit lies within one residency, which must have
// passed check_residencies.
void check_residencies(const Trace& trace, const Schedule& schedule, CheckFaults& faults);
void check_copies(const Trace& trace, const Schedule& schedule, CheckFaults& faults);
void check_reductions(const Trace& trace, const Schedule& schedule, CheckFaults& faults);
// Returns, by event, the index of the reduction that takes the gradient produced at the event, and -1 for other events
// and for gradients without staging. Adds a fault for each gradient with staging that is not taken by exactly one
// reduction, and for each second gradient without staging in a step. The reductions must have passed
// check_reductions.
std::vector<int> match_produces(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule,
                                CheckFaults& faults);

}  // namespace tessera::schedule
