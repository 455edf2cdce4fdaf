// What ranks talk to each other for, and along which axes of the mesh.
#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/mesh/mesh.h"

namespace tessera::mesh {

enum class Purpose : std::uint8_t {
  program,    // the program's own collectives
  gather,     // scheduled weights travel here ...
  reduce,     // ... gradients here, so that they do not queue behind each other
  demand,     // weights that no schedule foresaw
  rows,       // rows of tables that the program reads by index
  replicas,   // sums of gradients over replicas, and the weights that each has updated
  losses,     // of what each rank read
  norm,       // of the gradient
  agreement,  // that ranks did the same
  casts,      // amaxes of whole weights
};
std::string_view name_of(Purpose purpose);

// Data: a communicator is made for it (comm/role_groups.h).
struct Role {
  Purpose purpose = Purpose::program;
  Axes axes;  // of one grid, at least one

  auto operator<=>(const Role&) const = default;
};
std::string to_string(const Role& role);  // "gather over gtp"

// Mesh::groups of its axes. Errors: a role without axes, or with axes that no grid has together.
std::vector<std::vector<int>> groups_of(const Mesh& mesh, const Role& role);

}  // namespace tessera::mesh
