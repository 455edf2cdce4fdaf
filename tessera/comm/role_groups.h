// The communicators of one rank, by role. A role's communicator is made at the first use, because each communicator
// takes 0.2 to 0.4 GB of GPU memory.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/mesh/transfer.h"

namespace tessera::comm {

// For use by one thread. `world` must outlive this object.
class RoleGroups {
 public:
  RoleGroups(World& world, const mesh::Mesh& mesh) : world_(world), mesh_(mesh) {}

  // Returns the communicator of a role. The first call for a role makes the communicator. Roles with equal groups and
  // the same transfer share one communicator. A call that makes a communicator is collective over the world: every rank
  // requests the same roles in the same order. Throws the errors of groups_of and of make_group.
  Communicator& make(const mesh::Role& role, Traffic traffic = Traffic::any);
  // Returns the communicator of groups that do not follow an axis. `groups` are disjoint lists that together contain
  // every rank. The rules above also apply to this function.
  Communicator& make(mesh::Transfer transfer, const std::string& name, const std::vector<std::vector<int>>& groups,
                     Traffic traffic = Traffic::any);

  // Returns all communicators in the order in which they were made.
  std::vector<Communicator*> all() const;

 private:
  struct CreatedGroups {
    mesh::Transfer transfer;
    std::vector<std::vector<int>> groups;
    std::unique_ptr<Communicator> communicator;
  };

  World& world_;
  mesh::Mesh mesh_;
  std::vector<CreatedGroups> created_;
  std::map<mesh::Role, Communicator*> by_role_;
};

}  // namespace tessera::comm
