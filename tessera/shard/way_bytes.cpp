#include "tessera/shard/way_bytes.h"

#include "tessera/comm/operation.h"
#include "tessera/comm/redistribution.h"
#include "tessera/shard/parameter_layouts.h"
#include "tessera/shard/reduction_tree.h"
#include "tessera/shard/rows/rows.h"

namespace tessera::shard {
namespace {

using schedule::Activity, schedule::Way;

std::vector<layout::Layout> stored_by_compute(const ParameterLayouts& layouts, int parts) {
  std::vector<layout::Layout> stored;
  for (int rank = 0; rank < layouts.home.size(); ++rank) stored.push_back(layouts.stored(rank, parts));
  return stored;
}

void add_to(Way& sum, Way way, std::int64_t times) {
  for (schedule::Hop& hop : way) hop.bytes *= times;
  schedule::add_hops(sum, way);
}

}  // namespace

WayBytes::WayBytes(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types,
                   const Cuts& cuts, bool by_rows)
    : spec_(spec),
      layouts_(layouts),
      types_(types),
      cuts_(cuts),
      by_rows_(by_rows),
      overlaps_(layouts.overlaps()),
      sums_compute_(sums_compute(spec, layouts)),
      stored_(stored_by_compute(layouts, cuts.parts)) {
  for (PlaneSpec& plane : planes_of(spec, types)) {
    Moved moved;
    moved.layouts = plane_layouts(spec, plane, layouts);
    if (overlaps_) moved.over_compute = layout::redistribute(moved.layouts.home, moved.layouts.compute);
    moved.stored = stored_by_compute(moved.layouts, cuts.parts);
    moved.spec = std::move(plane);
    planes_.push_back(std::move(moved));
  }
  if (!sums_compute_) return;
  layout::Layout parts = spec.compute;
  parts.state = layout::State::partial;
  compute_sum_ = layout::redistribute(parts, layouts.home);
  compute_collective_ = layout::recognise(compute_sum_, parts, layouts.home);
}

// Counts all planes: first the parts of the other storing ranks, then the overlapping parts of compute ranks.
Way WayBytes::gather(const Place& place) const {
  if (by_rows_) return {};
  const auto compute = static_cast<std::size_t>(place.compute);
  std::int64_t storage = 0, over_compute = 0;
  for (const Moved& plane : planes_) {
    const std::int64_t own = plane.stored[compute].ranks[static_cast<std::size_t>(place.part)].size;
    storage += plane.spec.bytes(plane.layouts.home.ranks[compute].size - own);
    if (overlaps_) over_compute += plane.spec.bytes(plane.over_compute.elements_received(place.compute));
  }
  Way way;
  if (layouts_.is_cut && cuts_.parts > 1) way.push_back({Activity::gather, storage});
  if (overlaps_) way.push_back({Activity::gather_compute, over_compute});
  return way;
}

Way WayBytes::reduce(const Place& place) const {
  if (!spec_.trainable) return {};
  Way way;
  if (by_rows_) {
    const std::int64_t bytes = messages_of(spec_, layouts_, cuts_.parts).exchanged(types_.wire);
    return {{Activity::reduce, bytes}};
  }
  if (sums_compute_)
    way.push_back({Activity::reduce_compute,
                   comm::received_bytes(compute_collective_, compute_sum_.ranks,
                                        compute_sum_.elements_received(place.compute), types_.accumulator)});
  if (cuts_.reducing() == 1) return way;
  const ReductionTree::Bytes bytes =
      tree_of(stored_[static_cast<std::size_t>(place.compute)], cuts_, place).bytes(types_.wire, types_.accumulator);
  way.push_back({Activity::reduce, bytes.within + bytes.between});
  return way;
}

// In an all-reduce a rank receives the parts of the other replicas twice: first as terms, then as sums. If each replica
// updates a part (ZeRO-1), a rank receives the terms of the part that it updates. If places are dead, a rank receives
// its whole shard from every other replica. A vector that all ranks store comes from the first rank of each replica.
Way WayBytes::sum_replicas(const Place& place) const {
  const std::int64_t others = cuts_.replicas - 1;
  if (!spec_.trainable || others == 0) return {};
  const layout::LocalLayout& own =
      stored_[static_cast<std::size_t>(place.compute)].ranks[static_cast<std::size_t>(place.part)];
  if (!cuts_.parts_by_replica.empty()) {
    const std::int64_t givers = layouts_.is_cut || place.part == 0 ? others : cuts_.replicas;
    return {{Activity::replicas, types_.accumulator_bytes(givers * own.size)}};
  }
  if (!splits())
    return {{Activity::replicas, comm::all_reduce_received(types_.accumulator_bytes(own.size), cuts_.replicas)}};
  const std::int64_t state = layouts_.updated(own, cuts_.replicas)[static_cast<std::size_t>(place.replica)].size;
  return {{Activity::replicas, types_.accumulator_bytes(others * state)}};
}

Way WayBytes::publish(const Place& place) const {
  if (!splits()) return {};
  std::int64_t bytes = 0;
  for (const Moved& plane : planes_) {
    const layout::LocalLayout& own =
        plane.stored[static_cast<std::size_t>(place.compute)].ranks[static_cast<std::size_t>(place.part)];
    const std::int64_t state = plane.layouts.updated(own, cuts_.replicas)[static_cast<std::size_t>(place.replica)].size;
    bytes += plane.spec.bytes(own.size - state);
  }
  return {{Activity::publish, bytes}};
}

Ways WayBytes::at(const Place& place) const {
  return {gather(place), reduce(place), sum_replicas(place), publish(place)};
}

Ways WayBytes::most() const {
  Ways most;
  for (int compute = 0; compute < layouts_.home.size(); ++compute)
    for (int part = 0; part < cuts_.parts; ++part) {
      const Place place{.compute = compute, .part = part};
      schedule::raise(most.gather, gather(place));
      for (int duplicate = 0; duplicate < cuts_.duplicates; ++duplicate)
        schedule::raise(most.reduce, reduce({.compute = compute, .part = part, .duplicate = duplicate}));
      // Earlier replicas update at least as much as later ones.
      schedule::raise(most.replicas, sum_replicas(place));
      schedule::raise(most.publish, publish({.compute = compute, .part = part, .replica = cuts_.replicas - 1}));
    }
  for (const int parts : cuts_.parts_by_replica) {
    if (parts == cuts_.parts) continue;
    Cuts other = cuts_;
    other.parts = parts;
    other.parts_by_replica = {parts, cuts_.parts};  // still different
    const WayBytes theirs(spec_, layouts_, types_, other, by_rows_);
    for (int compute = 0; compute < layouts_.home.size(); ++compute)
      for (int part = 0; part < parts; ++part)
        schedule::raise(most.replicas, theirs.sum_replicas({.compute = compute, .part = part}));
  }
  return most;
}

Ways WayBytes::all_ranks() const {
  Ways all;
  const std::int64_t holders = std::int64_t{cuts_.replicas} * cuts_.duplicates;
  std::int64_t stored = 0, planes = 0;  // of one replica
  for (int compute = 0; compute < layouts_.home.size(); ++compute)
    for (int part = 0; part < cuts_.parts; ++part) {
      const Place place{.compute = compute, .part = part};
      const auto size_in = [&](const std::vector<layout::Layout>& layouts) {
        return layouts[static_cast<std::size_t>(compute)].ranks[static_cast<std::size_t>(part)].size;
      };
      add_to(all.gather, gather(place), holders);
      add_to(all.reduce, reduce(place), holders);
      if (!splits()) add_to(all.replicas, sum_replicas(place), holders);
      stored += size_in(stored_);
      for (const Moved& plane : planes_) planes += plane.spec.bytes(size_in(plane.stored));
    }
  if (!splits()) return all;
  // Together, all replicas receive (replicas - 1) times the stored bytes. A formula is used because a loop over many
  // replicas would be slow.
  const std::int64_t others = std::int64_t{cuts_.duplicates} * (cuts_.replicas - 1);
  if (spec_.trainable) all.replicas = {{Activity::replicas, others * types_.accumulator_bytes(stored)}};
  all.publish = {{Activity::publish, others * planes}};
  return all;
}

}  // namespace tessera::shard
