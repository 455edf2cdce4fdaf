// The checker for the ranks of a mesh: those of one class carry out one schedule.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "tessera/schedule/check/together.h"

namespace tessera::schedule {

// The communicators of a role: lists of ranks that talk to each other, which hold every rank. Roles with equal groups
// and the same purpose share them.
struct RoleGroup {
  std::string purpose;
  std::vector<std::vector<int>> groups;

  bool operator==(const RoleGroup&) const = default;
};
using RoleGroups = std::map<std::string, RoleGroup>;  // by role of a call order (together.h)

// class_of: by rank, which of the orders it has. Errors: a role without groups.
RankOrders rank_orders(const RoleGroups& groups, std::vector<CallOrder> orders, const std::vector<int>& class_of);

// check() of the schedule and check_together() of `ranks` ranks that all carry it out. Empty: proved.
std::vector<std::string> check_mesh(const RoleGroups& groups, int ranks, const Trace& trace,
                                    const std::vector<ParameterSize>& sizes, const Schedule& schedule);

}  // namespace tessera::schedule
