// The communicators of one rank, by role. A role's communicator is made when something first needs it: each costs a GPU
// 0.2 to 0.4 GB.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/mesh/role.h"

namespace tessera::comm {

// One thread. The world outlives it.
class RoleGroups {
 public:
  RoleGroups(World& world, const mesh::Mesh& mesh) : world_(world), mesh_(mesh) {}

  // The communicator of a role, made by the first call. Roles with equal groups and the same purpose share one.
  // Collective over the world where it is made: every rank asks for the same roles in the same order. Errors: those of
  // groups_of and of make_group.
  Communicator& make(const mesh::Role& role, Traffic traffic = Traffic::any);
  // The same of groups that lie along no axis: disjoint lists that hold every rank.
  Communicator& make(mesh::Purpose purpose, const std::string& name, const std::vector<std::vector<int>>& groups,
                     Traffic traffic = Traffic::any);

  // All of them, in the order of their making.
  std::vector<Communicator*> all() const;

 private:
  struct Made {
    mesh::Purpose purpose;
    std::vector<std::vector<int>> groups;
    std::unique_ptr<Communicator> communicator;
  };

  World& world_;
  mesh::Mesh mesh_;
  std::vector<Made> made_;
  std::map<mesh::Role, Communicator*> by_role_;
};

}  // namespace tessera::comm
