// A domain: the axes of the mesh that cut a parameter, and the numbers of parts. Dense weights have one domain, experts
// another domain of the same ranks.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/device.h"
#include "tessera/mesh/role.h"
#include "tessera/schedule/check/check_mesh.h"

namespace tessera::shard {

// Names all axes of one grid of the mesh, in the order of the grid. Only `duplicates` may be empty.
struct Domain {
  mesh::Axes compute;     // ranks that share a matrix out while an operation runs
  mesh::Axes storage;     // ranks that store one such part between them
  mesh::Axes duplicates;  // ranks of one replica that store the same; often none
  mesh::Axes replicas;    // ranks of different replicas of the model, whose gradients are added once a step
};

// The purposes for which ranks of a domain communicate.
enum class Via : std::uint8_t {
  gather,          // weights: the ranks that store a part ...
  gather_compute,  // ... then those that use overlapping parts
  demand,          // the first of these, for weights that no schedule foresaw
  rows,            // rows of tables, likewise
  reduce_compute,  // gradients: the ranks that hold a sum in parts ...
  reduce,          // ... then those that store a part, and the ones of its duplicates
  replicas,        // sums over replicas, and new weights
};

// Into how many parts the ranks of a domain cut a parameter, as one rank sees it.
struct Cuts {
  int parts = 1;       // ranks that store a compute part between them, in this rank's replica
  int replicas = 1;    // of the whole
  bool zero = false;   // each replica updates a part of the weights (ZeRO-1)
  int node = 1;        // consecutive ranks of a reduction that add their gradients first (reduction_tree.h)
  int duplicates = 1;  // of each part in a replica
  // Where places are dead, by replica: ranks that store a compute part. Empty: `parts` everywhere.
  std::vector<int> parts_by_replica;

  int parts_of(int replica) const {
    return parts_by_replica.empty() ? parts : parts_by_replica[static_cast<std::size_t>(replica)];
  }
  int most_parts() const;
  // Ranks whose gradients are added for each part.
  int reducing() const { return parts * duplicates; }
  // Whether a replica's ranks hold the optimizer's state only in part.
  bool splits_state() const { return zero && replicas > 1; }
};

// Where a rank is in a domain: which part of the compute layout it uses, which part of that it stores, in which
// duplicate, of which replica.
struct Place {
  int compute = 0, part = 0, replica = 0, duplicate = 0;
  base::Device device = {};
};

// Pure. Errors: a domain that does not name all axes of a grid in its order; dead places that leave compute ranks
// without a peer, or compute parts of one replica that unequal numbers of ranks store; a replica without a rank.
Cuts cuts_of(const mesh::Mesh& mesh, const Domain& domain, int rank);
Place place_of(const mesh::Mesh& mesh, const Domain& domain, int rank);
// The ranks that `via` is among. Replicas meet part by part; where places are dead, all that store a compute part meet.
mesh::Role role_of(const mesh::Mesh& mesh, const Domain& domain, Via via);

// The compute ranks of a domain, as one of them sees them. Collectives of the program run over them.
struct ComputeGroup {
  int rank = 0;          // index of this rank among the live ranks
  int size = 1;          // number of live ranks
  int nominal_size = 1;  // number of places, dead ones included
};
ComputeGroup compute_group_of(const mesh::Mesh& mesh, const Domain& domain, int rank);
// Returns the role of the program's collectives over the domain, and the name of their group in events: the names of
// the compute axes. Domains with the same compute axes share both.
mesh::Role program_role(const Domain& domain);
std::string program_name(const Domain& domain);

// The roles that do not belong to a parameter's ways. `losses`: the ranks that read different samples. `norm`, `world`
// and `casts`: all ranks.
struct RunRoles {
  mesh::Role losses, norm, world, casts;
};
// `first`: the domain of activations and samples.
RunRoles run_roles(const mesh::Mesh& mesh, const Domain& first);

// By rank: its class, from 0 in the order of their first ranks. Ranks of a class cut every domain alike: they do the
// same in a step, and carry out one schedule. Ranks that share a part or a matrix are of one class.
std::vector<int> classes_of(const mesh::Mesh& mesh, const std::vector<Domain>& domains);

// Returns the groups that a schedule's calls are proved with: those of every way of every domain, those of the
// program's collectives over every domain (by program_name), and those over all ranks. Throws Error if a program_name
// is the name of another role.
schedule::RoleGroups role_groups(const mesh::Mesh& mesh, const std::vector<Domain>& domains);

}  // namespace tessera::shard
