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

// The places of a compute group that have ranks, in ascending order.
using Slots = std::vector<int>;
// The slots of each compute group of a replica that has a rank, in the order of places. Duplicates count once.
using ReplicaShape = std::vector<Slots>;

// The numbers of parts into which a domain divides a parameter, for one rank.
struct Cuts {
  int parts = 1;       // compute groups of this rank's replica; if all are full, the ranks that store a compute part
  int replicas = 1;    // replicas of the whole weight that have a rank
  bool zero = false;   // each replica updates a part of the weights (ZeRO-1)
  int node = 1;        // consecutive ranks of a reduction that add their gradients first (reduction_tree.h)
  int duplicates = 1;  // duplicates of each part in a replica
  int slots = 1;       // places of a compute group, dead ones included
  int replica = 0;     // of this rank, among the replicas that have a rank
  // By replica. Set if the mesh has dead places. Empty: `parts` full groups in every replica.
  std::vector<ReplicaShape> shapes;

  int parts_of(int replica) const {
    return shapes.empty() ? parts : static_cast<int>(shapes[static_cast<std::size_t>(replica)].size());
  }
  int max_parts() const;
  // Whether a compute group of the replica has fewer ranks than places. Its other ranks have adopted the missing parts.
  bool is_reduced(int replica) const;
  bool is_reduced() const { return is_reduced(replica); }
  bool any_reduced() const;
  // Returns the shape of this rank's replica, whether the mesh has dead places or not.
  ReplicaShape own_shape() const;
  // Returns the number of a rank among all ranks of this replica, in the order of places.
  int number_in_replica(int part, int compute) const;
  // Returns the replicas that update the optimizer's state under ZeRO-1: the largest class of replicas with equal
  // shapes, among equals the class of the lowest replica.
  std::vector<int> updating_replicas() const;
  // The number of ranks whose gradients are added for each part.
  int reducing() const { return parts * duplicates; }
  // Whether each rank of a replica keeps only a part of its shard's optimizer state.
  bool splits_state() const { return zero && replicas > 1; }
};

// A rank's place in a domain, as indices that count only places with ranks: its number in its compute group, the number
// of this group in its replica, its replica and its duplicate. If all compute groups of the replica are full, `part` is
// also the number of the shard that the rank stores of its compute part.
struct Place {
  int compute = 0, part = 0, replica = 0, duplicate = 0;
  base::Device device = {};
};

// Pure. Throws Error if the domain does not name all axes of a grid in the order of the grid. Throws Error if a domain
// with duplicates has a compute group with dead places or different numbers of ranks that store the parts of a replica.
Cuts cuts_of(const mesh::Mesh& mesh, const Domain& domain, int rank);
Place place_of(const mesh::Mesh& mesh, const Domain& domain, int rank);
// Returns the role whose groups communicate for `via`. For Via::replicas a group consists of the ranks that store one
// part, one rank in each replica. If the mesh has dead places, a group consists of all ranks that store one compute
// part. If a compute group lacks ranks, it consists of all ranks.
mesh::Role role_of(const mesh::Mesh& mesh, const Domain& domain, Via via);
// Returns the groups that communicate for `via`: those of role_of along its axes. If a compute group lacks ranks, the
// ranks of its replica adopt parts of each other, and gathers and reductions of this replica run over all its ranks.
std::vector<std::vector<int>> groups_of(const mesh::Mesh& mesh, const Domain& domain, Via via);
// Returns the groups in which ranks exchange the losses of their samples. Group k consists of the k-th rank of each
// compute group, in the order of replicas and parts. Ranks without such a group follow in group 0 and only listen.
std::vector<std::vector<int>> loss_groups(const mesh::Mesh& mesh, const Domain& first);

// The compute ranks of a domain, for one of these ranks. The program's collectives run over these ranks.
struct ComputeGroup {
  int rank = 0;          // index of this rank among the live ranks
  int size = 1;          // number of live ranks
  int nominal_size = 1;  // number of places, dead ones included
  Slots slots = {};      // the places of the ranks
  // The slots of all groups of the domain, each once, a full group first. Empty if all groups are full.
  std::vector<Slots> shapes = {};
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
// belong to replicas of equal shapes in every domain: they execute the same events and one schedule. The ranks of a
// replica are of one class.
std::vector<int> classes_of(const mesh::Mesh& mesh, const std::vector<Domain>& domains);

// Returns the lanes of each domain's hops. Hops with the same purpose and equal groups share a communicator and its
// lane.
std::vector<schedule::DomainLanes> lanes_of_hops(const mesh::Mesh& mesh, const std::vector<Domain>& domains);

// Returns the groups with which the calls of a schedule are checked: those of every way of every domain, those of the
// program's collectives over every domain (by program_name), and those over all ranks. Throws Error if a program_name
// is the name of another role.
schedule::RoleGroups role_groups(const mesh::Mesh& mesh, const std::vector<Domain>& domains);

}  // namespace tessera::shard
