#include "tessera/shard/replicas.h"

#include <utility>

namespace tessera::shard {
namespace {

layout::Layout over_replicas(layout::Shape shape, std::vector<layout::LocalLayout> ranks, layout::State state) {
  return {.shape = shape, .ranks = std::move(ranks), .state = state};
}

}  // namespace

Replicas::Replicas(const ShardedParameter& parameter, const Parallel& parallel) {
  const int replicas = parallel.dp_size(), rank = parallel.dp_rank();
  if (replicas == 1) return;
  const auto count = static_cast<std::size_t>(replicas);
  using enum layout::State;
  if (parameter.spec.trainable) {
    const layout::Shape shape = parameter.storage.shape;
    const std::vector<layout::LocalLayout> stored(count, parameter.local_storage);
    sum_.emplace(over_replicas(shape, stored, partial),
                 over_replicas(shape, parameter.splits_state() ? parameter.states : stored, replicated), rank);
    sum_bytes_ = sum_->received_bytes(parameter.types.accumulator);
  }
  if (!parameter.splits_state()) return;
  for (const Plane& plane : parameter.planes) {
    const layout::Shape shape = plane.layouts.storage.shape;
    updates_.emplace_back(over_replicas(shape, plane.states, replicated),
                          over_replicas(shape, std::vector(count, plane.local_storage), replicated), rank);
    update_bytes_ += updates_.back().received_bytes(plane.spec.type);
  }
}

base::Fence Replicas::sum(ShardedParameter& parameter, Parallel& parallel, const base::Fence& written,
                          const base::LaneMark& mark) const {
  if (!sum_) return written;
  base::Lane& lane = parallel.dp->lane();
  lane.wait(written);
  mark.begin(lane);
  return mark.end(lane, sum_->run(*parallel.dp, parameter.main_grad.data(), parameter.state_gradient(),
                                  parameter.types.accumulator));
}

base::Fence Replicas::gather_updates(ShardedParameter& parameter, Parallel& parallel, const base::Fence& written,
                                     const base::LaneMark& mark) const {
  base::Lane& lane = parallel.dp->lane();
  lane.wait(written);
  mark.begin(lane);
  base::Fence gathered;
  for (std::size_t p = 0; p < updates_.size(); ++p) {
    Plane& plane = parameter.planes[p];
    gathered = updates_[p].run(*parallel.dp, plane.state_data(), plane.data.data(), plane.spec.type);
  }
  return mark.end(lane, gathered);
}

}  // namespace tessera::shard
