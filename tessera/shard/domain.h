// A domain: the axes of the mesh over which a parameter is sharded, and the numbers of parts. Dense weights have one
// domain, and experts have another domain over the same ranks.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/base/device.h"
#include "tessera/mesh/role.h"
#include "tessera/schedule/check/check_mesh.h"
#include "tessera/schedule/simulate.h"

namespace tessera::shard {

// Names all axes of one grid of the mesh, in the order of the grid. Only `duplicates` may be empty.
struct Domain {
  mesh::Axes compute;     // ranks that divide a matrix among them while an operation runs
  mesh::Axes storage;     // ranks that together store one compute part
  mesh::Axes duplicates;  // ranks of one replica that store the same part; often empty
  mesh::Axes replicas;    // ranks of different replicas of the model; their gradients are added once a step
};

// The purposes for which ranks of a domain communicate.
enum class Via : std::uint8_t {
  gather,          // weights: the ranks that store a part
  gather_compute,  // weights, second hop: the ranks that use overlapping parts
  demand,          // gathers of weights without a schedule, over the ranks of `gather`
  rows,            // rows of tables, over the ranks of `gather`
  reduce_compute,  // gradients, first hop: the ranks that hold terms of one sum
  reduce,          // gradients: the ranks that store a part or a duplicate of a part
  replicas,        // sums over replicas, and new weights
};

// The numbers of parts into which a domain divides a parameter, for one rank.
struct Cuts {
  int parts = 1;      // ranks that together store a compute part, in this rank's replica
  int replicas = 1;   // replicas of the whole weight
  bool zero = false;  // each replica updates a part of the weights (ZeRO-1)
  int node = 1;  // the number of consecutive ranks that first add their gradients among themselves (reduction_tree.h)
  int duplicates = 1;  // duplicates of each part in a replica
  // By replica: the number of ranks that store a compute part. Set if the mesh has dead places. Empty: `parts` in every
  // replica.
  std::vector<int> parts_by_replica;

  int parts_of(int replica) const {
    return parts_by_replica.empty() ? parts : parts_by_replica[static_cast<std::size_t>(replica)];
  }
  int max_parts() const;
  // The number of ranks whose gradients are added for each part.
  int reducing() const { return parts * duplicates; }
  // Whether each rank of a replica keeps only a part of its shard's optimizer state.
  bool splits_state() const { return zero && replicas > 1; }
};

// A rank's place in a domain, as indices: the compute part that the rank uses, the shard of this part that it stores,
// its replica and its duplicate.
struct Place {
  int compute = 0, part = 0, replica = 0, duplicate = 0;
  base::Device device = {};
};

// Pure. Throws Error if the domain does not name all axes of a grid in the order of the grid. Throws Error if a compute
// group has dead places, if different numbers of ranks store the compute parts of one replica, or if a replica has no
// rank.
Cuts cuts_of(const mesh::Mesh& mesh, const Domain& domain, int rank);
Place place_of(const mesh::Mesh& mesh, const Domain& domain, int rank);
// Returns the role whose groups communicate for `via`. For Via::replicas a group consists of the ranks that store one
// part, one rank in each replica. If the mesh has dead places, a group consists of all ranks that store one compute
// part.
mesh::Role role_of(const mesh::Mesh& mesh, const Domain& domain, Via via);

// The compute ranks of a domain, for one of these ranks. The program's collectives run over them.
struct ComputeGroup {
  int rank = 0;          // index of this rank among the live ranks
  int size = 1;          // number of live ranks
  int nominal_size = 1;  // number of places, dead ones included
};
ComputeGroup compute_group_of(const mesh::Mesh& mesh, const Domain& domain, int rank);
// Returns the role of the program's collectives over the domain, and the name of their group in events: the names of
// the compute axes. Domains with the same compute axes share the role and the name.
mesh::Role program_role(const Domain& domain);
std::string program_name(const Domain& domain);

// The roles that do not belong to a parameter's ways. `losses`: the ranks that read different samples. `norm`, `world`
// and `casts`: all ranks.
struct RunRoles {
  mesh::Role losses, norm, world, casts;
};
// `first`: the domain of activations and samples.
RunRoles run_roles(const mesh::Mesh& mesh, const Domain& first);

// Returns the class of each rank. Classes have numbers from 0, in the order of their first ranks. Ranks of one class
// have the same sharding in every domain: they do the same work in a step and execute one schedule. Ranks that share a
// part or a matrix are of one class.
std::vector<int> classes_of(const mesh::Mesh& mesh, const std::vector<Domain>& domains);

// Returns the lanes of each domain's hops. Hops with the same purpose and equal groups share a communicator and its
// lane.
std::vector<schedule::DomainLanes> lanes_of_hops(const mesh::Mesh& mesh, const std::vector<Domain>& domains);

// Returns the groups with which the calls of a schedule are checked: those of every way of every domain, those of the
// program's collectives over every domain (by program_name), and those over all ranks. Throws Error if a program_name
// is the name of another role.
schedule::RoleGroups role_groups(const mesh::Mesh& mesh, const std::vector<Domain>& domains);

}  // namespace tessera::shard
