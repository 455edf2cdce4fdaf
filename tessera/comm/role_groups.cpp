#include "tessera/comm/role_groups.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::comm {

Communicator& RoleGroups::make(mesh::Transfer transfer, const std::string& name,
                               const std::vector<std::vector<int>>& groups, Traffic traffic) {
  const auto found = std::ranges::find_if(
      created_, [&](const CreatedGroups& it) { return it.transfer == transfer && it.groups == groups; });
  if (found != created_.end()) return *found->communicator;
  std::unique_ptr<Communicator> communicator = world_.make_group(name, groups, traffic);
  TESSERA_CHECK(communicator, "rank {} is not in any group of '{}'", world_.rank(), name);
  return *created_.emplace_back(CreatedGroups{transfer, groups, std::move(communicator)}).communicator;
}

Communicator& RoleGroups::make(const mesh::Role& role, Traffic traffic) {
  if (const auto found = by_role_.find(role); found != by_role_.end()) return *found->second;
  const std::string name = fmt::format("{}-{}", fmt::join(role.axes, "-"), name_of(role.transfer));
  Communicator& made = make(role.transfer, name, groups_of(mesh_, role), traffic);
  by_role_.emplace(role, &made);
  return made;
}

std::vector<Communicator*> RoleGroups::all() const {
  std::vector<Communicator*> all;
  for (const CreatedGroups& made : created_) all.push_back(made.communicator.get());
  return all;
}

}  // namespace tessera::comm
