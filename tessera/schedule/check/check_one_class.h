// Checks a schedule that all ranks of a mesh execute. The time does not depend on the number of ranks.
//
// The groups of each role contain every rank exactly once. All ranks make the same calls in the same order, so the k-th
// calls of all members of a communicator are equal. The order of a rank's calls is also an order of all instances in
// which no instance depends on a later instance. check_together() therefore finds no fault, for any number of ranks.
// Only the schedule itself is checked, and that each of its collectives has a role.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule {

// Calls check() for a schedule that all ranks execute. If it finds no fault, checks that the roles of the schedule's
// collectives (call_order) are in `roles`. The groups of each role must contain every rank exactly once. Returns the
// faults. An empty vector means that the schedule is correct on all ranks.
std::vector<std::string> check_one_class(const std::set<std::string>& roles, const Trace& trace,
                                         const std::vector<ParameterSize>& sizes, const Schedule& schedule);

}  // namespace tessera::schedule
