// The groups of a run that a model and its runtime talk over, as one rank holds them.
#pragma once
#include <array>
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
  std::vector<Domain> domains;                // by number; the first is that of activations and samples
  int rank = 0;                               // in the world
  base::Device device;                        // where weights and gradients lie
  std::unique_ptr<base::Lane> compute;        // the program itself
  std::unique_ptr<base::Lane> sums;           // of arrived gradients; null: on the lane of Via::reduce
  std::unique_ptr<comm::RoleGroups> roles;    // owns the communicators here and those of groups()
  comm::Communicator* losses = nullptr;       // all ranks that read different samples, and of one compute part
  comm::Communicator* norm = nullptr;         // all ranks: the gradient's norm; graphs are launched on its lane
  comm::Communicator* world = nullptr;        // all ranks
  std::vector<int> class_of;                  // by rank (domain.h)
  comm::Communicator* alike = nullptr;        // the ranks of this one's class, which compare what they do
  comm::Communicator* casts = nullptr;        // all ranks: amaxes of whole weights; null where no format asks for them
  std::unique_ptr<rendezvous::Board> board;   // the last events of each rank, for ranks that wait too long
  std::shared_ptr<base::VirtualClock> clock;  // null where time is real

  // How a domain cuts parameters, and where this rank is in it. What the run's options say of cuts is not set: zero,
  // node.
  const Cuts& cuts(int domain = 0) const { return placed(domain).cuts; }
  const Place& place(int domain = 0) const { return placed(domain).place; }
  const ComputeGroup& compute_group(int domain = 0) const { return placed(domain).compute; }
  // The communicator of the program's collectives over the domain's compute ranks. Domains with equal groups share it.
  comm::Communicator& program(int domain = 0) const { return *placed(domain).program; }

  // Makes the communicators that a parameter's ways need, if they are not there. Collective over the world: every rank
  // does it with the same parameters in the same order, before the first of their ways is made ready. cuts: those of
  // the parameter. Errors: a domain that is not there.
  void provide(const ShardedParameter& parameter, const Cuts& cuts);
  // Errors: no parameter of the domain needed it.
  comm::Communicator& of(int domain, Via via) const { return *at(domain, via); }
  bool has(int domain, Via via) const { return placed(domain).made[static_cast<std::size_t>(via)] != nullptr; }
  bool has_classes() const { return alike != world; }
  // Those of all domains that have been made, in the order of domains.
  std::vector<comm::Communicator*> made(Via via) const;

  // All of them, in the order of their making.
  std::vector<comm::Communicator*> groups() const { return roles->all(); }

  // Those that work for the next step before a graph of this one has ended: of scheduled gathers and of rows.
  std::vector<base::Lane*> lanes_ahead() const;
  // Every lane but compute's.
  std::vector<base::Lane*> lanes() const;
  // Pending and later operations of this rank fail at once.
  void cancel() const;
  // Blocks until those lanes have come to the end of what they hold, failed or not: nothing uses its memory then.
  void drain() const;

  std::unique_ptr<quant::Kernels> own_kernels, own_sum_kernels;  // on compute and sums; null: the host's
  const quant::Kernels& kernels() const { return own_kernels ? *own_kernels : quant::host_kernels(); }
  const quant::Kernels& sum_kernels() const { return own_sum_kernels ? *own_sum_kernels : quant::host_kernels(); }
  // Whether compute is a queue that the host fills and does not wait for.
  bool is_asynchronous() const { return compute->stream() != nullptr; }

  // One domain as this rank sees it.
  struct Placed {
    Cuts cuts;
    Place place;
    ComputeGroup compute;
    comm::Communicator* program = nullptr;
    std::array<comm::Communicator*, 7> made{};  // by Via
  };
  std::vector<Placed> all_placed;

 private:
  const Placed& placed(int domain) const;
  comm::Communicator* at(int domain, Via via) const;
};

// Collective over the world, which outlives the result; `casts` only if it is requested. Every rank has the same mesh
// and domains. Errors (InputError): a mesh of another number of ranks than the run; those of cuts_of.
ParallelGroups make_parallel_groups(comm::World& world, RankLayout layout, bool with_casts = false);

}  // namespace tessera::shard
