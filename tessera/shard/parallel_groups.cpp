#include "tessera/shard/parallel_groups.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/lanes/cuda_lane.h"
#include "tessera/layout/home.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {
namespace {

using mesh::Transfer;

std::vector<std::vector<int>> ranks_by_class(const std::vector<int>& class_of) {
  std::vector<std::vector<int>> ranks(static_cast<std::size_t>(std::ranges::max(class_of)) + 1);
  for (std::size_t rank = 0; rank < class_of.size(); ++rank)
    ranks[static_cast<std::size_t>(class_of[rank])].push_back(static_cast<int>(rank));
  return ranks;
}

std::string group_name(const mesh::Role& role) {
  return fmt::format("{}-{}", fmt::join(role.axes, "-"), name_of(role.transfer));
}

comm::Traffic traffic_of(Transfer transfer) {
  return transfer == Transfer::demand || transfer == Transfer::rows ? comm::Traffic::small : comm::Traffic::any;
}

}  // namespace

ParallelGroups make_parallel_groups(comm::World& world, RankLayout layout, bool with_casts) {
  const int ranks = layout.mesh.world_size();
  if (ranks != world.size())
    throw InputError("{} = {} ranks, but the run has {}", to_string(layout.mesh.grids().front()), ranks, world.size());
  TESSERA_CHECK(!layout.domains.empty(), "the rank layout has no domain, expected at least one");
  ParallelGroups parallel{.mesh = std::move(layout.mesh), .domains = std::move(layout.domains), .rank = world.rank()};
  for (const Domain& domain : parallel.domains)
    parallel.all_placed.push_back(
        {.cuts = cuts_of(parallel.mesh, domain, parallel.rank),
         .place = place_of(parallel.mesh, domain, parallel.rank),
         .compute = compute_group_of(parallel.mesh, domain, parallel.domains.front(), parallel.rank)});
  TESSERA_CHECK(parallel.all_placed.front().cuts.duplicates == 1,
                "the first domain stores {} duplicates in a replica, expected 1: its ranks read different samples",
                parallel.all_placed.front().cuts.duplicates);
  parallel.roles = std::make_unique<comm::RoleGroups>(world, parallel.mesh);
  parallel.clock = world.clock();
  parallel.board = world.make_board();
  const Domain& first = parallel.domains.front();
  const auto role_in = [&](const Domain& domain, Transfer transfer) {
    return role_of(parallel.mesh, domain, transfer);
  };
  const auto make = [&](Transfer transfer) {
    return &parallel.roles->make(role_in(first, transfer), comm::Traffic::small);
  };
  for (std::size_t domain = 0; domain < parallel.domains.size(); ++domain)
    parallel.all_placed[domain].program = &parallel.roles->make(role_in(parallel.domains[domain], Transfer::program));
  parallel.losses = &parallel.roles->make(Transfer::losses, group_name(role_in(first, Transfer::losses)),
                                          groups_of(parallel.mesh, first, Transfer::losses), comm::Traffic::small);
  parallel.norm = make(Transfer::norm);
  parallel.world = make(Transfer::agreement);
  parallel.class_of = classes_of(parallel.mesh, parallel.domains);
  parallel.rank_class =
      &parallel.roles->make(Transfer::agreement, "class", ranks_by_class(parallel.class_of), comm::Traffic::small);
  if (with_casts) parallel.casts = make(Transfer::casts);
  parallel.device = parallel.world->kernels().device();
  for (ParallelGroups::Placed& placed : parallel.all_placed) placed.place.device = parallel.device;
  if (parallel.device.kind == base::DeviceKind::cuda) {
    parallel.compute = base::make_cuda_lane("compute", parallel.device);
    parallel.own_kernels = quant::make_cuda_kernels(parallel.device, parallel.compute->stream());
    // The kernel of a sum waits until products release multiprocessors. Sums have a separate lane, so that this wait
    // does not delay the next exchange.
    parallel.sums = base::make_cuda_lane("sums", parallel.device, base::LanePriority::high);
    parallel.own_sum_kernels = quant::make_cuda_kernels(parallel.device, parallel.sums->stream());
  } else {
    parallel.compute = base::make_inline_lane(parallel.clock);
  }
  return parallel;
}

void ParallelGroups::provide(const ShardedParameter& parameter, const Cuts& cuts) {
  const ParameterSpec& spec = parameter.spec;
  placed(spec.domain);  // throws if the domain does not exist
  const Domain& domain = domains[static_cast<std::size_t>(spec.domain)];
  Placed& placed = all_placed[static_cast<std::size_t>(spec.domain)];
  const auto need = [&](Transfer transfer) {
    comm::Communicator*& made = placed.made[transfer];
    if (made != nullptr) return;
    const mesh::Role role = role_of(mesh, domain, transfer);
    if (cuts.any_reduced())
      made = &roles->make(role.transfer, group_name(role), groups_of(mesh, domain, transfer), traffic_of(transfer));
    else
      made = &roles->make(role, traffic_of(transfer));
  };
  // All ranks make the same communicators, including communicators that only ranks of other replicas need.
  const auto in_some_group = [&](auto&& holds) {
    return std::ranges::any_of(spec.compute_by_slots, [&](const auto& group) { return holds(group.second); });
  };
  const bool overlaps =
      parameter.layouts.overlaps() || (spec.sharded && in_some_group([](const layout::Layout& compute) {
                                         return layout::unique_home(compute) != compute;
                                       }));
  const bool is_gathered = (spec.sharded && cuts.max_parts() > 1) || overlaps || is_unpacked(spec);
  need(Transfer::demand);  // ranks also compare their events over this communicator
  if (is_gathered) need(Transfer::gather);
  if (overlaps) need(Transfer::gather_compute);
  if (parameter.by_rows) need(Transfer::rows);
  if (spec.trainable) need(Transfer::reduce);
  if (sums_compute(spec, parameter.layouts) || (spec.trainable && overlaps)) need(Transfer::reduce_compute);
  // A backward weight is published together with its weight.
  if (cuts.replicas > 1 && (spec.trainable || cuts.zero)) need(Transfer::replicas);
}

void ParallelGroups::provide_matrices(Transfer transfer) {
  if (matrices == nullptr) matrices = &roles->make(role_of(mesh, domains.front(), transfer));
}

const ParallelGroups::Placed& ParallelGroups::placed(int domain) const {
  TESSERA_CHECK(domain >= 0 && static_cast<std::size_t>(domain) < all_placed.size(), "domain {} of {} does not exist",
                domain, all_placed.size());
  return all_placed[static_cast<std::size_t>(domain)];
}

comm::Communicator* ParallelGroups::at(int domain, Transfer transfer) const {
  comm::Communicator* const made = placed(domain).made[transfer];
  TESSERA_CHECK(made, "domain {} has no communicator for {}: no parameter needs it", domain,
                to_string(role_of(mesh, domains[static_cast<std::size_t>(domain)], transfer)));
  return made;
}

std::vector<comm::Communicator*> ParallelGroups::made(Transfer transfer) const {
  std::vector<comm::Communicator*> all;
  for (const Placed& placed : all_placed) {
    comm::Communicator* const one = placed.made[transfer];
    if (one != nullptr && std::ranges::find(all, one) == all.end()) all.push_back(one);
  }
  return all;
}

std::vector<base::Lane*> ParallelGroups::lanes_ahead() const {
  std::vector<base::Lane*> lanes;
  for (const Transfer transfer : {Transfer::gather, Transfer::gather_compute, Transfer::rows})
    for (comm::Communicator* group : made(transfer))
      if (std::ranges::find(lanes, &group->lane()) == lanes.end()) lanes.push_back(&group->lane());
  return lanes;
}

std::vector<base::Lane*> ParallelGroups::lanes() const {
  std::vector<base::Lane*> lanes;
  for (comm::Communicator* group : groups()) lanes.push_back(&group->lane());
  if (sums) lanes.push_back(sums.get());
  return lanes;
}

void ParallelGroups::cancel() const {
  for (comm::Communicator* group : groups()) group->cancel();
}

void ParallelGroups::drain() const {
  for (base::Lane* lane : lanes()) lane->record().wait_until_done();
}

}  // namespace tessera::shard
