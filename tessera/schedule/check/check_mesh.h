// Checks the schedules of all ranks of a mesh. The ranks of one class execute the same schedule.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "tessera/schedule/check/together.h"

namespace tessera::schedule {

// The communicators of a role. Each communicator is a list of ranks, and every rank is in exactly one list. Roles with
// equal lists and equal lanes share their communicators.
struct CheckedGroup {
  mesh::Transfer lane;
  std::vector<std::vector<int>> groups;

  bool operator==(const CheckedGroup&) const = default;
};
using CheckedGroups = std::map<std::string, CheckedGroup>;  // the keys are roles of a call order (together.h)

// Combines the call orders of the classes (`orders`) with the communicators. `class_of[rank]` is the rank's index into
// `orders`. Throws Error if `groups` lacks a role.
RankOrders rank_orders(const CheckedGroups& groups, std::vector<CallOrder> orders, const std::vector<int>& class_of);

// Calls check() for the schedule, then check_together() for `ranks` ranks that all execute this schedule. Returns the
// faults. An empty vector means that the schedule is correct.
std::vector<std::string> check_mesh(const CheckedGroups& groups, int ranks, const Trace& trace,
                                    const std::vector<ParameterSize>& sizes, const Schedule& schedule);

}  // namespace tessera::schedule
