#include "tessera/schedule/check/check_mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/schedule/check/check.h"

namespace tessera::schedule {
namespace {

// Returns the first role that shares the communicators of `role`.
const std::string& first_equal(const CheckedGroups& groups, const std::string& role) {
  const auto own = groups.find(role);
  TESSERA_CHECK(own != groups.end(), "the schedule calls collectives of the role '{}', which has no groups", role);
  return std::ranges::find_if(groups, [&](const auto& other) { return other.second == own->second; })->first;
}

// Gives all orders the same roles and merges roles that share communicators. An order then also has roles without a
// call, because its ranks are members of their communicators.
void merge_roles(const CheckedGroups& groups, std::vector<CallOrder>& orders) {
  std::vector<std::string> roles;
  for (CallOrder& order : orders) {
    std::vector<int> merged;  // index: role of this order; value: index of the merged role
    for (const std::string& role : order.roles) {
      const std::string& first = first_equal(groups, role);
      const auto at = std::ranges::find(roles, first);
      merged.push_back(static_cast<int>(at - roles.begin()));
      if (at == roles.end()) roles.push_back(first);
    }
    for (CollectiveCall& call : order.calls) call.role = merged[static_cast<std::size_t>(call.role)];
  }
  for (CallOrder& order : orders) order.roles = roles;
}

}  // namespace

RankOrders rank_orders(const CheckedGroups& groups, std::vector<CallOrder> orders, const std::vector<int>& class_of) {
  merge_roles(groups, orders);
  RankOrders all{.orders = std::move(orders), .communicators = {}, .ranks = {}};
  for (const int its_class : class_of) all.ranks.push_back({.order = its_class, .communicators = {}});
  for (const std::string& role : all.orders.front().roles)
    for (const std::vector<int>& group : groups.at(role).groups) {
      for (const int rank : group)
        all.ranks[static_cast<std::size_t>(rank)].communicators.push_back(static_cast<int>(all.communicators.size()));
      all.communicators.push_back({fmt::format("{} of rank {}", role, group.front()), group});
    }
  return all;
}

std::vector<std::string> check_mesh(const CheckedGroups& groups, int ranks, const Trace& trace,
                                    const std::vector<ParameterSize>& sizes, const Schedule& schedule) {
  std::vector<std::string> faults = check(trace, sizes, schedule);
  if (faults.empty())
    faults = check_together(rank_orders(groups, {call_order(trace, sizes, schedule)},
                                        std::vector<int>(static_cast<std::size_t>(ranks), 0)));
  return faults;
}

}  // namespace tessera::schedule
