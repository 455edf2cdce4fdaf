// The communicators and lanes of one rank, for a model and its runtime.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/role_groups.h"
#include "tessera/comm/world.h"
#include "tessera/mesh/mesh.h"
#include "tessera/quant/device_kernels.h"
#include "tessera/shard/rank_layout.h"

namespace tessera::shard {

struct ShardedParameter;

struct ParallelGroups {
  mesh::Mesh mesh;
  std::vector<Domain> domains;          // by number; domain 0 is the domain of activations and samples
  int rank = 0;                         // in the world
  base::Device device;                  // holds weights and gradients
  std::unique_ptr<base::Lane> compute;  // runs the program
  std::unique_ptr<base::Lane>
      sums;  // runs sums of received gradients; null: the lane of Transfer::reduce runs these sums
  std::unique_ptr<comm::RoleGroups> roles;  // owns all communicators
  // Communicator of all ranks that read different samples and use the same compute part.
  comm::Communicator* losses = nullptr;
  // Communicator of all ranks for the gradient's norm. Graphs are launched on its lane.
  comm::Communicator* norm = nullptr;
  comm::Communicator* world = nullptr;  // all ranks
  std::vector<int> class_of;            // by rank: its class (domain.h)
  // Communicator of the ranks of this rank's class, which compare their events.
  comm::Communicator* rank_class = nullptr;
  // Communicator for the exchanges of rules of matrices (shard/matrices/matrix_plan.h); null: not made.
  comm::Communicator* matrices = nullptr;
  // Communicator of all ranks for amaxes of whole weights; null if no format needs the amaxes.
  comm::Communicator* casts = nullptr;
  std::unique_ptr<rendezvous::Board> board;   // contains the last events of each rank; ranks that wait too long read it
  std::shared_ptr<base::VirtualClock> clock;  // null if time is real

  // Returns how a domain shards parameters, for this rank. Cuts::zero and Cuts::node have their default values;
  // runtime::with_options sets them.
  const Cuts& cuts(int domain = 0) const { return placed(domain).cuts; }
  const Place& place(int domain = 0) const { return placed(domain).place; }
  const ComputeGroup& compute_group(int domain = 0) const { return placed(domain).compute; }
  // Returns the communicator of the program's collectives over the domain's compute ranks. Domains with equal groups
  // share one communicator.
  comm::Communicator& program(int domain = 0) const { return *placed(domain).program; }

  // Makes the communicators for the parameter's ways that do not exist yet. Collective over the world: every rank
  // passes the same parameters in the same order. Called before the objects for the parameter's ways are built. `cuts`
  // is the sharding of the parameter. Throws Error if the parameter's domain does not exist.
  void provide(const ShardedParameter& parameter, const Cuts& cuts);
  // Makes `matrices` for the transfer matrices or replica_matrices. Collective over the world.
  void provide_matrices(mesh::Transfer transfer);
  // Returns the communicator of a domain for a transfer. Throws Error if no parameter of the domain needs this
  // communicator.
  comm::Communicator& of(int domain, mesh::Transfer transfer) const { return *at(domain, transfer); }
  bool has(int domain, mesh::Transfer transfer) const { return placed(domain).made[transfer] != nullptr; }
  bool has_classes() const { return rank_class != world; }
  // Returns the communicators of all domains for a transfer, in the order of domains, each once.
  std::vector<comm::Communicator*> made(mesh::Transfer transfer) const;

  // Returns all communicators, in the order in which they were made.
  std::vector<comm::Communicator*> groups() const { return roles->all(); }

  // Returns the lanes that may work for the next step before a graph of this step has ended: the lanes of scheduled
  // gathers and of rows.
  std::vector<base::Lane*> lanes_ahead() const;
  // Returns all lanes except compute.
  std::vector<base::Lane*> lanes() const;
  // Cancels pending and future operations of all communicators of this rank.
  void cancel() const;
  // Blocks until all lanes except compute have finished their work or failed. After drain(), only compute may still use
  // this rank's memory.
  void drain() const;

  // Kernels on the lanes of compute and of sums; null: host kernels.
  std::unique_ptr<quant::Kernels> own_kernels, own_sum_kernels;
  const quant::Kernels& kernels() const { return own_kernels ? *own_kernels : quant::host_kernels(); }
  const quant::Kernels& sum_kernels() const { return own_sum_kernels ? *own_sum_kernels : quant::host_kernels(); }
  // Returns whether compute is asynchronous: the host enqueues work without waiting for it.
  bool is_asynchronous() const { return compute->stream() != nullptr; }

  // A domain from the point of view of this rank: its sharding, this rank's place and communicators.
  struct Placed {
    Cuts cuts;
    Place place;
    ComputeGroup compute;
    comm::Communicator* program = nullptr;
    mesh::ByTransfer<comm::Communicator*> made;  // null: not made
  };
  std::vector<Placed> all_placed;

 private:
  const Placed& placed(int domain) const;
  comm::Communicator* at(int domain, mesh::Transfer transfer) const;
};

// Makes the groups of this rank. Collective over the world, which must outlive the result. Every rank passes the same
// mesh and domains. Makes `casts` only if `with_casts` is true. Throws the errors of cuts_of, and InputError if the
// mesh and the world have different numbers of ranks.
ParallelGroups make_parallel_groups(comm::World& world, RankLayout layout, bool with_casts = false);

}  // namespace tessera::shard
