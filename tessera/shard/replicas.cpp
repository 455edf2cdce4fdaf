#include "tessera/shard/replicas.h"

#include <algorithm>
#include <utility>

namespace tessera::shard {
namespace {

layout::Layout over_replicas(layout::Shape shape, std::vector<layout::LocalLayout> ranks, layout::State state) {
  return {.shape = shape, .ranks = std::move(ranks), .state = state};
}

// If every rank of a replica stores a gradient whole, only the first rank of the replica contributes it.
void give_once(std::vector<layout::LocalLayout>& given, const ShardedParameter& parameter) {
  std::size_t first = 0;
  for (const layout::Layout& replica : parameter.storage_by_replica) {
    const auto end = first + replica.ranks.size();
    std::fill(given.begin() + static_cast<std::ptrdiff_t>(first) + 1, given.begin() + static_cast<std::ptrdiff_t>(end),
              layout::LocalLayout{});
    first = end;
  }
}

}  // namespace

Replicas::Replicas(const ShardedParameter& parameter, const ParallelGroups& parallel) {
  const int replicas = parallel.cuts(parameter.spec.domain).replicas;
  const Place& place = parallel.place(parameter.spec.domain);
  if (replicas == 1) return;
  const auto count = static_cast<std::size_t>(replicas);
  using enum layout::State;
  if (parameter.spec.trainable) {
    const layout::Shape shape = parameter.storage.shape;
    std::vector<layout::LocalLayout> stored(count, parameter.local_storage);
    int rank = place.replica;
    if (!parameter.storage_by_replica.empty()) {
      stored.clear();
      for (std::size_t replica = 0; replica < count; ++replica) {
        if (static_cast<int>(replica) == place.replica) rank = static_cast<int>(stored.size()) + place.part;
        const std::vector<layout::LocalLayout>& theirs = parameter.storage_by_replica[replica].ranks;
        stored.insert(stored.end(), theirs.begin(), theirs.end());
      }
    }
    std::vector<layout::LocalLayout> given = stored;
    if (!parameter.storage_by_replica.empty() && !parameter.layouts.is_cut) give_once(given, parameter);
    sum_.emplace(over_replicas(shape, std::move(given), partial),
                 over_replicas(shape, parameter.splits_state() ? parameter.states : stored, replicated), rank,
                 parameter.types.accumulator);
  }
  if (!parameter.splits_state()) return;
  for (const Plane& plane : parameter.planes) {
    const layout::Shape shape = plane.storage.shape;
    updates_.emplace_back(over_replicas(shape, plane.states, replicated),
                          over_replicas(shape, std::vector(count, plane.local_storage), replicated), place.replica);
  }
}

base::Fence Replicas::sum(ShardedParameter& parameter, ParallelGroups& parallel, const base::Fence& written,
                          const base::LaneMark& mark) const {
  if (!sum_) return written;
  comm::Communicator& group = parallel.of(parameter.spec.domain, Via::replicas);
  base::Lane& lane = group.lane();
  lane.wait(written);
  mark.begin(lane);
  return mark.end(
      lane, sum_->run(group, parameter.main_grad.data(), parameter.state_gradient(), parameter.types.accumulator));
}

base::Fence Replicas::gather_updates(ShardedParameter& parameter, ParallelGroups& parallel, const base::Fence& written,
                                     const base::LaneMark& mark) const {
  comm::Communicator& group = parallel.of(parameter.spec.domain, Via::replicas);
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
