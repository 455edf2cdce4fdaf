#include "tessera/shard/ways/way_bytes.h"

#include <algorithm>

#include "tessera/comm/operation.h"
#include "tessera/comm/redistribution.h"
#include "tessera/shard/parameter_layouts.h"
#include "tessera/shard/rows/rows.h"
#include "tessera/shard/ways/replicas.h"

namespace tessera::shard {
namespace {

using mesh::Transfer;
using schedule::Way;

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
      stored_(layouts, cuts) {
  const int groups = std::max(1, static_cast<int>(layouts.groups.size()));
  for (PlaneSpec& plane : planes_of(spec, types)) {
    const ParameterLayouts of_plane = plane_layouts(spec, plane, layouts);
    Moved moved{.spec = std::move(plane), .layouts = of_plane, .over_compute = {}, .stored = {of_plane, cuts}};
    for (int group = 0; overlaps_ && group < groups; ++group) {
      const GroupLayouts each = of_plane.group(group);
      moved.over_compute.push_back(layout::redistribute(each.home, each.compute));
    }
    planes_.push_back(std::move(moved));
  }
  for (int group = 0; sums_compute_ && group < groups; ++group) {
    GroupLayouts each = layouts.group(group);
    each.compute.state = layout::State::partial;
    layout::TransferPlan plan = layout::redistribute(each.compute, each.home);
    layout::Collective collective = layout::recognise(plan, each.compute, each.home);
    compute_sums_.push_back({std::move(plan), std::move(collective)});
  }
  if (spec.trainable && !by_rows && cuts.reducing() > 1 && layouts.groups.size() <= 1)
    for (const layout::Layout& storage : stored_.layouts()) reductions_.emplace_back(storage, cuts);
  if (cuts.shapes.empty() || cuts.replicas == 1) return;
  const int exchanges = layouts.replicas.empty() ? layouts.home.size() : 1;
  for (int compute = 0; compute < exchanges; ++compute) unequal_.push_back(unequal(compute));
}

WayBytes::Unequal WayBytes::unequal(int compute) const {
  const Place place{.compute = compute, .replica = cuts_.replica};
  const RankParts parts = rank_parts(layouts_, cuts_, place);
  Unequal result;
  int ranks = 0;
  for (const layout::Layout& replica : parts.storage_by_replica) {
    result.first.push_back(ranks);
    ranks += replica.size();
  }
  result.summed.resize(static_cast<std::size_t>(ranks)), result.published.resize(static_cast<std::size_t>(ranks));
  const auto add = [&](const ReplicaExchange& exchange, quant::DType type, std::vector<std::int64_t>& bytes) {
    const layout::TransferPlan plan = layout::redistribute(exchange.from, exchange.to);
    const layout::Collective collective = layout::recognise(plan, exchange.from, exchange.to);
    for (int rank = 0; rank < ranks; ++rank)
      bytes[static_cast<std::size_t>(rank)] +=
          comm::received_bytes(collective, ranks, plan.elements_received(rank), type);
  };
  if (spec_.trainable) add(replica_sum(parts, cuts_.replicas), types_.accumulator, result.summed);
  if (!splits()) return result;
  for (const Moved& plane : planes_)
    add(replica_update(rank_parts(plane.layouts, cuts_, place), cuts_.replicas), plane.spec.type, result.published);
  return result;
}

const WayBytes::Unequal& WayBytes::unequal_of(const Place& place) const {
  return unequal_[layouts_.replicas.empty() ? static_cast<std::size_t>(place.compute) : 0];
}

std::size_t WayBytes::rank_in(const Unequal& exchange, const Place& place) const {
  const int number = layouts_.replicas.empty() ? place.part : cuts_.number_in_replica(place.part, place.compute);
  return static_cast<std::size_t>(exchange.first[static_cast<std::size_t>(cuts_.replica)] + number);
}

// Counts the bytes of all planes. The first hop moves the parts of the other storage ranks, and the second hop moves
// overlapping parts of compute ranks.
Way WayBytes::gather(const Place& place) const {
  if (by_rows_) return {};
  std::int64_t storage = 0, over_compute = 0;
  for (const Moved& plane : planes_) {
    const layout::Layout& home =
        plane.layouts.groups.empty() ? plane.layouts.home : plane.layouts.groups[group_index(place)].home;
    storage += plane.spec.bytes(home.ranks[static_cast<std::size_t>(place.compute)].size - plane.stored.of(place).size);
    if (overlaps_)
      over_compute += plane.spec.bytes(plane.over_compute[group_index(place)].elements_received(place.compute));
  }
  Way way;
  if (layouts_.is_cut && cuts_.parts > 1) way.push_back({Transfer::gather, storage});
  if (overlaps_) way.push_back({Transfer::gather_compute, over_compute});
  return way;
}

Way WayBytes::reduce(const Place& place) const {
  if (!spec_.trainable) return {};
  Way way;
  if (by_rows_) {
    const std::int64_t bytes = messages_of(spec_, layouts_, cuts_.parts).exchanged(types_.wire);
    return {{Transfer::reduce, bytes}};
  }
  if (sums_compute_) {
    const auto& [plan, collective] = compute_sums_[group_index(place)];
    way.push_back(
        {Transfer::reduce_compute,
         comm::received_bytes(collective, plan.ranks, plan.elements_received(place.compute), types_.accumulator)});
  }
  if (cuts_.reducing() == 1) return way;
  if (layouts_.groups.size() > 1) {
    // Each compute group contributes every element once. Only its first rank contributes a vector that all ranks store.
    const std::int64_t own = layouts_.is_cut || place.compute == 0 ? 1 : 0;
    way.push_back({Transfer::reduce, bytes_of((cuts_.parts - own) * stored_.of(place).size, types_.wire)});
    return way;
  }
  const ReductionBytes::Bytes bytes = reductions_[stored_.index_of(place)].of(stored_.number_of(place), place.duplicate,
                                                                              types_.wire, types_.accumulator);
  way.push_back({Transfer::reduce, bytes.within + bytes.between});
  return way;
}

// In an all-reduce a rank receives the parts of the other replicas twice: first as terms, then as sums. If each replica
// updates a part (ZeRO-1), a rank receives the terms of the part that it updates.
Way WayBytes::sum_replicas(const Place& place) const {
  const std::int64_t others = cuts_.replicas - 1;
  if (!spec_.trainable || others == 0) return {};
  if (!unequal_.empty()) {
    const Unequal& exchange = unequal_of(place);
    return {{Transfer::replicas, exchange.summed[rank_in(exchange, place)]}};
  }
  const layout::LocalLayout& own = stored_.of(place);
  if (!splits())
    return {{Transfer::replicas, comm::all_reduce_received(types_.accumulator_bytes(own.size), cuts_.replicas)}};
  const std::int64_t state = layouts_.updated_elements(own, cuts_.replicas, place.replica);
  return {{Transfer::replicas, types_.accumulator_bytes(others * state)}};
}

Way WayBytes::publish(const Place& place) const {
  if (!splits()) return {};
  if (!unequal_.empty()) {
    const Unequal& exchange = unequal_of(place);
    return {{Transfer::publish, exchange.published[rank_in(exchange, place)]}};
  }
  std::int64_t bytes = 0;
  for (const Moved& plane : planes_) {
    const layout::LocalLayout& own = plane.stored.of(place);
    const std::int64_t state = plane.layouts.updated_elements(own, cuts_.replicas, place.replica);
    bytes += plane.spec.bytes(own.size - state);
  }
  return {{Transfer::publish, bytes}};
}

Ways WayBytes::at(const Place& place) const {
  return {gather(place), reduce(place), sum_replicas(place), publish(place)};
}

Ways WayBytes::most() const {
  Ways most;
  for (Place place : stored_.places()) {
    schedule::raise(most.gather, gather(place));
    for (place.duplicate = 0; place.duplicate < cuts_.duplicates; ++place.duplicate)
      schedule::raise(most.reduce, reduce(place));
    place.duplicate = 0;
    for (const int replica : layouts_.extreme_replicas(cuts_.replicas)) {
      place.replica = replica;
      schedule::raise(most.replicas, sum_replicas(place));
      schedule::raise(most.publish, publish(place));
    }
  }
  for (const Unequal& exchange : unequal_) {
    if (!most.replicas.empty())
      most.replicas.front().bytes = std::max(most.replicas.front().bytes, std::ranges::max(exchange.summed));
    if (!most.publish.empty())
      most.publish.front().bytes = std::max(most.publish.front().bytes, std::ranges::max(exchange.published));
  }
  return most;
}

Ways WayBytes::all_ranks() const {
  Ways all;
  const std::int64_t holders = std::int64_t{cuts_.replicas} * cuts_.duplicates;
  std::int64_t stored = 0, planes = 0;  // number of elements and bytes of one replica
  for (const Place& place : stored_.places()) {
    add_to(all.gather, gather(place), holders);
    add_to(all.reduce, reduce(place), holders);
    if (!splits()) add_to(all.replicas, sum_replicas(place), holders);
    stored += stored_.of(place).size;
    for (const Moved& plane : planes_) planes += plane.spec.bytes(plane.stored.of(place).size);
  }
  if (!splits()) return all;
  // Together, all replicas receive (replicas - 1) times the stored bytes. A formula is used because a loop over many
  // replicas would be slow.
  const std::int64_t others = std::int64_t{cuts_.duplicates} * (cuts_.replicas - 1);
  if (spec_.trainable) all.replicas = {{Transfer::replicas, others * types_.accumulator_bytes(stored)}};
  all.publish = {{Transfer::publish, others * planes}};
  return all;
}

}  // namespace tessera::shard
