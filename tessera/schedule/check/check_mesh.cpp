#include "tessera/schedule/check/check_mesh.h"

#include <fmt/format.h>

#include <utility>

#include "tessera/schedule/check/check.h"

namespace tessera::schedule {
namespace {

bool is_of(const std::string& role, const std::string& group) {
  return role == group || role.starts_with(group + "_");
}

std::vector<std::string> axes_of(const mesh::Mesh& mesh, const std::string& role) {
  std::vector<std::string> axes;
  for (const mesh::Axis& axis : mesh.axes())
    if (is_of(role, axis.name) || is_of(role, "world")) axes.push_back(axis.name);
  return axes;
}

}  // namespace

RankOrders mesh_orders(const mesh::Mesh& mesh, CallOrder order) {
  RankOrders all;
  all.ranks.resize(static_cast<std::size_t>(mesh.world_size()));
  for (const std::string& role : order.roles)
    for (std::vector<int>& group : mesh.groups(axes_of(mesh, role))) {
      for (const int rank : group)
        all.ranks[static_cast<std::size_t>(rank)].communicators.push_back(static_cast<int>(all.communicators.size()));
      all.communicators.push_back({fmt::format("{} of rank {}", role, group.front()), std::move(group)});
    }
  all.orders.push_back(std::move(order));
  return all;
}

std::vector<std::string> check_mesh(const mesh::Mesh& mesh, const Trace& trace, const std::vector<ParameterSize>& sizes,
                                    const Schedule& schedule) {
  std::vector<std::string> faults = check(trace, sizes, schedule);
  if (faults.empty()) faults = check_together(mesh_orders(mesh, call_order(trace, sizes, schedule)));
  return faults;
}

}  // namespace tessera::schedule
