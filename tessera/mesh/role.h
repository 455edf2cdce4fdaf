// A role is a purpose for which ranks communicate, and the axes of the mesh along which they do.
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
  gather,     // scheduled gathers of weights
  reduce,     // scheduled reductions of gradients; separate from gathers, so that neither waits for the other
  demand,     // gathers of weights without a schedule
  rows,       // rows of tables that the program reads by index
  replicas,   // sums of gradients over replicas, and exchanges of the weights that each replica has updated
  losses,     // losses of the samples that each rank reads
  norm,       // norm of the gradient
  agreement,  // comparison of the events that the ranks executed
  casts,      // amaxes of whole weights
};
std::string_view name_of(Purpose purpose);

// A plain value. comm/role_groups.h makes the communicator of a role.
struct Role {
  Purpose purpose = Purpose::program;
  Axes axes;  // at least one; all of one grid

  auto operator<=>(const Role&) const = default;
};
std::string to_string(const Role& role);  // "gather over gtp"

// Returns Mesh::groups of the role's axes. Throws Error for a role without axes, or if no grid contains all the axes.
std::vector<std::vector<int>> groups_of(const Mesh& mesh, const Role& role);

}  // namespace tessera::mesh
