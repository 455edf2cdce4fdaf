#include "tessera/shard/ways/replicas.h"

#include <algorithm>
#include <utility>

namespace tessera::shard {
namespace {

layout::Layout over_replicas(layout::Shape shape, std::vector<layout::LocalLayout> ranks, layout::State state) {
  return {.shape = shape, .ranks = std::move(ranks), .state = state};
}

// Returns the stored part of each rank of Transfer::replicas.
std::vector<layout::LocalLayout> stored_by(const RankParts& parts, int replicas) {
  if (parts.storage_by_replica.empty()) return std::vector(static_cast<std::size_t>(replicas), parts.local_storage);
  std::vector<layout::LocalLayout> stored;
  for (const layout::Layout& replica : parts.storage_by_replica)
    stored.insert(stored.end(), replica.ranks.begin(), replica.ranks.end());
  return stored;
}

// If every rank of a replica stores a gradient whole, only the first rank of the replica contributes it.
void give_once(std::vector<layout::LocalLayout>& given, const RankParts& parts) {
  std::size_t first = 0;
  for (const layout::Layout& replica : parts.storage_by_replica) {
    const auto end = first + replica.ranks.size();
    std::fill(given.begin() + static_cast<std::ptrdiff_t>(first) + 1, given.begin() + static_cast<std::ptrdiff_t>(end),
              layout::LocalLayout{});
    first = end;
  }
}

}  // namespace

ReplicaExchange replica_sum(const RankParts& parts, int replicas) {
  const std::vector<layout::LocalLayout> stored = stored_by(parts, replicas);
  std::vector<layout::LocalLayout> given = stored;
  if (!parts.layouts.is_cut) give_once(given, parts);
  return {over_replicas(parts.storage.shape, std::move(given), layout::State::partial),
          over_replicas(parts.storage.shape, parts.states.empty() ? stored : parts.states, layout::State::replicated)};
}

ReplicaExchange replica_update(const RankParts& parts, int replicas) {
  const layout::Shape shape = parts.storage.shape;
  return {over_replicas(shape, parts.states, layout::State::replicated),
          over_replicas(shape, stored_by(parts, replicas), layout::State::replicated)};
}

Replicas::Replicas(const ShardedParameter& parameter, const ParallelGroups& parallel) {
  const int replicas = parallel.cuts(parameter.spec.domain).replicas, rank = parameter.summing_rank;
  if (replicas == 1) return;
  if (parameter.spec.trainable) {
    const ReplicaExchange sum = replica_sum(parameter, replicas);
    sum_.emplace(sum.from, sum.to, rank, parameter.types.accumulator);
  }
  if (!parameter.splits_state()) return;
  for (const Plane& plane : parameter.planes) {
    const ReplicaExchange update = replica_update(plane, replicas);
    updates_.emplace_back(update.from, update.to, rank);
  }
}

base::Fence sum_over_replicas(std::span<const ReplicaSum> members, const ParallelGroups& parallel,
                              const base::Fence& written, const base::LaneMark& mark) {
  std::vector<comm::Movement> alone, together;
  for (const auto& [parameter, replicas] : members) {
    const auto& sum = replicas->sum_;
    if (!sum) continue;
    // An all_reduce alone receives fewer bytes, because its ranks exchange sums. Unequal replicas have other units.
    const bool is_alone = sum->collective().kind == layout::CollectiveKind::all_reduce ||
                          !parallel.cuts(parameter->spec.domain).shapes.empty();
    (is_alone ? alone : together)
        .push_back({&*sum, parameter->main_grad.data(), parameter->state_gradient(), parameter->types.accumulator});
  }
  if (together.size() == 1) alone.push_back(together.front());
  if (alone.empty() && together.empty()) return written;
  comm::Communicator& group = parallel.of(members.front().parameter->spec.domain, mesh::Transfer::replicas);
  base::Lane& lane = group.lane();
  lane.wait(written);
  mark.begin(lane);
  base::Fence summed;
  for (const comm::Movement& each : alone)
    summed = each.redistribution->run(group, each.source, each.target, each.type);
  if (together.size() > 1) summed = comm::sum_together(group, together);
  return mark.end(lane, summed);
}

base::Fence Replicas::gather_updates(ShardedParameter& parameter, ParallelGroups& parallel, const base::Fence& written,
                                     const base::LaneMark& mark) const {
  comm::Communicator& group = parallel.of(parameter.spec.domain, mesh::Transfer::replicas);
  base::Lane& lane = group.lane();
  lane.wait(written);
  mark.begin(lane);
  base::Fence gathered;
  for (std::size_t p = 0; p < updates_.size(); ++p) {
    Plane& plane = parameter.planes[p];
    gathered = updates_[p].run(group, plane.state_data(), plane.data.data(), plane.spec.type);
  }
  return mark.end(lane, gathered);
}

}  // namespace tessera::shard
