// A domain lists the axes of the mesh over which a parameter is sharded. Dense weights have one domain, and experts
// have another domain over the same ranks.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "tessera/base/device.h"
#include "tessera/mesh/transfer.h"
#include "tessera/schedule/check/check_mesh.h"
#include "tessera/schedule/simulate.h"

namespace tessera::shard {

// The four members together name all axes of one grid of the mesh, in the order of the grid. Only `duplicates` may be
// empty.
struct Domain {
  mesh::Axes compute;     // axes of the ranks that divide a matrix among them while an operation runs
  mesh::Axes storage;     // axes of the ranks that together store one compute part
  mesh::Axes duplicates;  // axes of the ranks of one replica that store equal parts; often empty
  mesh::Axes replicas;    // axes of the replicas of the model; gradients are added over replicas once a step
};

// The places of one compute group that have ranks, in ascending order.
using Slots = std::vector<int>;
// The slots of each compute group of a replica, in the order of places. Groups without ranks are left out. Duplicates
// count once.
using ReplicaShape = std::vector<Slots>;

// The numbers of parts into which a domain divides a parameter, for one rank.
struct Cuts {
  int parts = 1;  // number of compute groups of this rank's replica; if all groups are full, also the number of ranks
                  // that store a compute part
  int replicas = 1;    // number of replicas that have a rank
  bool zero = false;   // whether each replica updates a part of the weights (ZeRO-1)
  int node = 1;        // number of consecutive ranks that add their gradients first in a reduction (reduction_tree.h)
  int duplicates = 1;  // number of ranks of a replica that store each part
  int slots = 1;       // number of places of a compute group, dead places included
  int replica = 0;     // index of this rank's replica among the replicas that have a rank
  bool one_microbatch = false;  // whether every training step has one microbatch
  bool split_masters = false;   // whether masters are split where that is possible (splits_master())
  // By replica: its shape. Set if the mesh has dead places. If empty, every replica has `parts` full groups.
  std::vector<ReplicaShape> shapes;

  int parts_of(int replica) const {
    return shapes.empty() ? parts : static_cast<int>(shapes[static_cast<std::size_t>(replica)].size());
  }
  int max_parts() const;
  // Returns whether the replica is reduced: a compute group has fewer ranks than places. The group's ranks have then
  // adopted the missing parts.
  bool is_reduced(int replica) const;
  bool is_reduced() const { return is_reduced(replica); }
  bool any_reduced() const;
  // Returns the shape of this rank's replica, also if the mesh has no dead places.
  ReplicaShape own_shape() const;
  // Returns the number of a rank among all ranks of this replica, in the order of places.
  int number_in_replica(int part, int compute) const;
  // Returns the replicas that update the optimizer's state under ZeRO-1. These are the replicas of the most frequent
  // shape. If several shapes are equally frequent, the shape with the lowest replica is used.
  std::vector<int> updating_replicas() const;
  // Returns the number of ranks whose gradients are added for each part.
  int reducing() const { return parts * duplicates; }
  // Returns whether each rank keeps the optimizer state of only a part of its shard.
  bool splits_state() const { return zero && replicas > 1; }
};

// The position of a rank in a domain. The indices count only places with ranks. compute: index of the rank in its
// compute group. part: index of this group in its replica. replica, duplicate: index of the replica and of the
// duplicate. If all compute groups of the replica are full, `part` is also the index of the rank's shard within its
// compute part.
struct Place {
  int compute = 0, part = 0, replica = 0, duplicate = 0;
  base::Device device = {};
};

// Return the cuts and the place of a rank in a domain. Pure. Throw Error if the domain does not name all axes of a grid
// in the order of the grid. A domain with duplicates must not have compute groups with dead places, and all parts of a
// replica must be stored by equal numbers of ranks. Otherwise throw Error.
Cuts cuts_of(const mesh::Mesh& mesh, const Domain& domain, int rank);
Place place_of(const mesh::Mesh& mesh, const Domain& domain, int rank);
// Returns the role whose groups communicate for a transfer. For the transfers whose lane is `replicas`, a group has one
// rank in each replica, and these ranks store the same part. With dead places, a group has all ranks that store one
// compute part instead. If a compute group lacks ranks, one group has all ranks. The ranks of `losses` read different
// samples; the domain is then the domain of activations and samples.
mesh::Role role_of(const mesh::Mesh& mesh, const Domain& domain, mesh::Transfer transfer);
// Returns the groups of ranks that communicate for a transfer. These are the groups of role_of along its axes, unless
// compute groups lack ranks. Gathers and reductions of a replica with such a group run over all its ranks, because the
// ranks have adopted parts. For `losses`, group k then consists of the k-th rank of each compute group, in the order of
// replicas and parts. The remaining ranks are at the end of group 0. They receive the losses and contribute no losses.
std::vector<std::vector<int>> groups_of(const mesh::Mesh& mesh, const Domain& domain, mesh::Transfer transfer);

// The place of a rank along one axis. Places without ranks count.
struct AxisPlace {
  int index = 0, size = 1;
};
// The compute group of one rank in a domain. The program's collectives run over this group.
struct ComputeGroup {
  int rank = 0;                       // index of this rank among the live ranks
  int size = 1;                       // number of live ranks
  int nominal_size = 1;               // number of places, dead places included
  Slots slots = {};                   // the places of the live ranks
  std::vector<int> first_ranks = {};  // by live rank: its rank in its compute group of domain 0
  std::vector<AxisPlace> axes = {};   // by axis of Domain::compute: the place of this rank
  // The different slots of the domain's groups, without repetition. A full group is first. Empty if all groups are
  // full.
  std::vector<Slots> shapes = {};
};
// `first` is domain 0.
ComputeGroup compute_group_of(const mesh::Mesh& mesh, const Domain& domain, const Domain& first, int rank);
// Returns the group name of the program's collectives over the domain in events, which consists of the names of the
// compute axes. Domains with equal compute axes share the name.
std::string program_name(const Domain& domain);

// Returns the class of each rank. Classes have numbers from 0, in the order of their first ranks. Two ranks are of one
// class if their replicas have equal shapes in every domain. Ranks of one class execute the same events and the same
// schedule. All ranks of a replica are of one class.
std::vector<int> classes_of(const mesh::Mesh& mesh, const std::vector<Domain>& domains);

// Returns the lanes of each domain's hops.
std::vector<schedule::Lanes> lanes_of_hops(const mesh::Mesh& mesh, const std::vector<Domain>& domains);

// Returns the groups with which the calls of a schedule are checked (schedule/check/check_mesh.h). For each domain,
// these are the groups of its ways and of the program's collectives (by program_name). One more group contains all
// ranks. Throws Error if a program_name equals the name of another role.
schedule::CheckedGroups checked_groups(const mesh::Mesh& mesh, const std::vector<Domain>& domains);
// Returns the names of the groups that checked_groups() returns for the domains, without the groups.
std::set<std::string> role_names(const std::vector<Domain>& domains);

}  // namespace tessera::shard
