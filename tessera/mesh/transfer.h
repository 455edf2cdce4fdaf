// A transfer is a kind of communication between the ranks of a run. A role is a transfer with the axes of the mesh
// along which it runs.
#pragma once
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/mesh/mesh.h"

namespace tessera::mesh {

enum class Transfer : std::uint8_t {
  program,         // the program's own collectives, over the compute ranks
  gather,          // scheduled gathers of weights, over the ranks that store a compute part
  gather_compute,  // second hop of these gathers, over the ranks that use overlapping parts
  demand,          // gathers of weights without a schedule (first hop) and comparisons of events; ranks of `gather`
  rows,            // rows of tables that the program reads by index; ranks of `gather`
  reduce_compute,  // first hop of reductions of gradients, over the compute ranks that hold terms of one sum
  reduce,          // reductions of gradients, over the ranks that store a part, duplicates included
  replicas,        // sums of gradients over replicas
  publish,         // exchanges of the weights that each replica has updated
  losses,          // losses of the samples that each rank reads
  norm,            // norm of the gradient, over all ranks
  agreement,       // comparison of the events that the ranks executed
  casts,           // amaxes of whole weights, over all ranks
  matrices,        // directions and results of rules of matrices, over the ranks of a replica
  // The same over all ranks, if each replica updates a part of the weights.
  replica_matrices,
};
inline constexpr std::size_t kTransfers = static_cast<std::size_t>(Transfer::replica_matrices) + 1;

// Transfers with the same lane share a communicator, and the communicator's lane, where their groups are equal. Gathers
// and reductions have different lanes, so that neither waits for the other.
constexpr Transfer lane_of(Transfer transfer) {
  switch (transfer) {
    case Transfer::gather_compute:
      return Transfer::gather;
    case Transfer::reduce_compute:
      return Transfer::reduce;
    case Transfer::publish:
      return Transfer::replicas;
    default:
      return transfer;
  }
}

std::string_view name_of(Transfer transfer);   // "gather_compute"
std::string_view title_of(Transfer transfer);  // "gather over compute", for timelines and reports

// One value for each transfer.
template <typename T>
struct ByTransfer {
  std::array<T, kTransfers> values{};

  T& operator[](Transfer transfer) { return values[static_cast<std::size_t>(transfer)]; }
  const T& operator[](Transfer transfer) const { return values[static_cast<std::size_t>(transfer)]; }
};

// A plain value. comm/role_groups.h makes the communicator of a role.
struct Role {
  Transfer transfer = Transfer::program;  // equal to its lane_of
  Axes axes;                              // at least one; all of one grid

  auto operator<=>(const Role&) const = default;
};
std::string to_string(const Role& role);  // "gather over gtp"

// Returns Mesh::groups of the role's axes. Throws Error for a role without axes, or if no grid contains all the axes.
std::vector<std::vector<int>> groups_of(const Mesh& mesh, const Role& role);

}  // namespace tessera::mesh
