#include "tessera/shard/parameter_layouts.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/layout/dense.h"
#include "tessera/layout/home.h"
#include "tessera/shard/formats/encoded.h"
#include "tessera/shard/unequal/replica_layouts.h"

namespace tessera::shard {
namespace {

void check_planes(const ParameterSpec& spec) {
  TESSERA_CHECK(!spec.encoding || spec.planes.empty(),
                "parameter '{}': {} planes and an encoding, expected only one of the two", spec.name,
                spec.planes.size());
  TESSERA_CHECK(spec.planes.size() <= kMaxPlanes, "parameter '{}': {} planes, expected {} at most", spec.name,
                spec.planes.size(), kMaxPlanes);
  for (const PlaneSpec& plane : spec.planes)
    TESSERA_CHECK(plane.tile.rows >= 1 && plane.tile.cols >= 1,
                  "parameter '{}': plane '{}' has tiles of {} x {}, expected 1 x 1 or more", spec.name, plane.name,
                  plane.tile.rows, plane.tile.cols);
  TESSERA_CHECK(
      spec.planes.empty() || spec.planes.front().tile.is_element(),
      "parameter '{}': the first plane has tiles of {} x {}, expected one element for each element of the weight",
      spec.name, spec.planes.front().tile.rows, spec.planes.front().tile.cols);
}

// Throws for settings that groups of unequal sizes do not support. Parts of other sizes would have other tiles, and
// nodes would have different numbers of ranks.
void check_unequal(const ParameterSpec& spec, const Cuts& cuts) {
  if (!cuts.shapes.empty() && cuts.node > 1)
    throw InputError("--reduce-order hierarchical cannot be used with dead places, expected sequential");
  if (!cuts.any_reduced()) return;
  for (const PlaneSpec& plane : spec.planes)
    if (!plane.tile.is_element())
      throw InputError("parameter '{}': plane '{}' has tiles, which dead places in a tp group would change", spec.name,
                       plane.name);
}

// Returns a number of rows. Storage is cut only after multiples of this number, so that the tiles of all planes stay
// whole.
std::int64_t rows_together(const ParameterSpec& spec) {
  std::int64_t rows = spec.rows_together;
  for (const PlaneSpec& plane : planes_of(spec, {})) rows = std::lcm(rows, plane.tile.rows);
  return rows;
}

// Returns the rows of each matrix of a compute part, or 0 if the part is empty.
std::int64_t matrix_rows_of(const ParameterSpec& spec, const layout::LocalLayout& part) {
  const std::vector<RowsOfMatrix> matrices = matrices_in(spec, part);
  if (matrices.empty()) return 0;
  for (const RowsOfMatrix& one : matrices)
    TESSERA_CHECK(one.rows == matrices.front().rows,
                  "parameter '{}': a compute part holds {} rows of matrix {} and {} rows of matrix {}, expected equal "
                  "numbers",
                  spec.name, matrices.front().rows, matrices.front().matrix, one.rows, one.matrix);
  return matrices.front().rows;
}

void check_stack(const ParameterSpec& spec, const ParameterLayouts& layouts, const Cuts& cuts) {
  if (layouts.together == 1 && !spec.encoding) return;
  TESSERA_CHECK(
      !layouts.overlaps() && !cuts.any_reduced(),
      "parameter '{}': the parts of compute ranks overlap, or places of the group are dead; expected a stack of "
      "matrices in a number format without either",
      spec.name);
}

}  // namespace

std::vector<RowsOfMatrix> matrices_in(const ParameterSpec& spec, const layout::LocalLayout& part) {
  const std::int64_t logical_rows = spec.compute.shape.rows / matrices_of(spec);
  std::vector<RowsOfMatrix> matrices;
  for (const layout::Band& band : layout::bands_of(part))
    for (std::int64_t row = band.boxes.front().row, end = row + band.rows(); row < end;) {
      const std::int64_t matrix = row / logical_rows, next = std::min(end, (matrix + 1) * logical_rows);
      if (matrices.empty() || matrices.back().matrix != matrix) matrices.push_back({.matrix = matrix});
      matrices.back().rows += next - row;
      row = next;
    }
  return matrices;
}

std::vector<PlaneSpec> planes_of(const ParameterSpec& spec, const ParameterTypes& types) {
  if (spec.encoding) return encoded_planes(*spec.encoding);
  if (spec.planes.empty()) return {{.type = types.model}};
  return spec.planes;
}

ParameterLayouts plane_layouts(const ParameterSpec& spec, const PlaneSpec& plane, const ParameterLayouts& layouts) {
  if (plane.tile.is_element()) return layouts;
  ParameterLayouts grid{.is_cut = layouts.is_cut, .together = layouts.together / plane.tile.rows};
  for (const std::int64_t rows : layouts.matrix_rows)
    grid.matrix_rows.push_back(layout::units_of_tiles({.matrix_rows = rows}, plane.tile.rows).matrix_rows);
  grid.compute = grid.home = layout::tile_grid(layouts.home, plane.tile, layouts.matrix_rows);
  if (!layouts.overlaps()) return grid;
  std::optional<layout::Layout> overlapping = layout::overlapping_tile_grid(layouts.compute, layouts.home, plane.tile);
  TESSERA_CHECK(overlapping,
                "parameter '{}': compute ranks' parts overlap and begin or end inside a tile of {} x {} of plane '{}'",
                spec.name, plane.tile.rows, plane.tile.cols, plane.name);
  grid.compute = std::move(*overlapping);
  return grid;
}

namespace {

const layout::Layout& compute_of(const ParameterSpec& spec, const Slots& slots) {
  const auto found = spec.compute_by_slots.find(slots);
  TESSERA_CHECK(found != spec.compute_by_slots.end(), "parameter '{}' has no layout for tp ranks at places {}",
                spec.name, fmt::join(slots, ", "));
  TESSERA_CHECK(found->second.size() == static_cast<int>(slots.size()) && found->second.shape == spec.compute.shape,
                "parameter '{}': the layout for tp ranks at places {} has {} ranks, expected {}", spec.name,
                fmt::join(slots, ", "), found->second.size(), slots.size());
  return found->second;
}

GroupLayouts group_of(const ParameterSpec& spec, const Slots& slots) {
  const layout::Layout& compute = compute_of(spec, slots);
  layout::validate(compute, layout::Cover::all);
  return {.compute = compute, .home = spec.sharded ? layout::unique_home(compute) : compute};
}

// Returns the storage layout over all ranks of a replica with full groups.
layout::Layout full_storage(const ParameterLayouts& full, const ReplicaShape& shape) {
  layout::Layout storage{.shape = full.home.shape};
  std::vector<layout::Layout> stored;
  for (int rank = 0; rank < full.home.size(); ++rank)
    stored.push_back(full.stored(rank, static_cast<int>(shape.size())));
  for (std::size_t part = 0; part < shape.size(); ++part)
    for (const layout::Layout& of_rank : stored) storage.ranks.push_back(of_rank.ranks[part]);
  return storage;
}

void add_replicas(const ParameterSpec& spec, const Cuts& cuts, ParameterLayouts& layouts) {
  std::map<Slots, GroupLayouts> known;
  Slots places(static_cast<std::size_t>(cuts.slots));
  std::iota(places.begin(), places.end(), 0);
  known[places] = group_of(spec, places);
  ParameterLayouts full{.is_cut = layouts.is_cut, .together = layouts.together};
  full.home = full.compute = known[places].home;
  std::map<ReplicaShape, layout::Layout> storages;  // key: shape of a replica; many replicas have equal shapes
  for (int replica = 0; replica < cuts.replicas; ++replica) {
    const ReplicaShape& shape = cuts.shapes[static_cast<std::size_t>(replica)];
    const bool is_known = storages.contains(shape);
    if (is_known && replica != cuts.replica) {
      layouts.replicas.push_back(storages[shape]);
      continue;
    }
    std::vector<GroupLayouts> groups;
    for (const Slots& slots : shape) {
      if (!known.contains(slots)) known[slots] = group_of(spec, slots);
      groups.push_back(known[slots]);
    }
    if (!is_known && cuts.is_reduced(replica)) {
      storages[shape] = replica_storage(full.home, groups, layouts.is_cut, layouts.together);
      if (layouts.is_cut) check_replica(storages[shape], replica_homes(groups), spec.name);
    } else if (!is_known) {
      storages[shape] = full_storage(full, shape);
    }
    layouts.replicas.push_back(storages[shape]);
    if (replica == cuts.replica && cuts.is_reduced()) layouts.groups = std::move(groups);
  }
}

}  // namespace

ParameterLayouts layouts_of(const ParameterSpec& spec, const Cuts& cuts) {
  const layout::Layout& compute = spec.compute;
  const layout::Shape shape = layout::matrix_shape(spec.dims);
  TESSERA_CHECK(compute.shape == shape,
                "parameter '{}': the layout has the shape {} x {}, expected the logical shape {} x {}", spec.name,
                compute.shape.rows, compute.shape.cols, shape.rows, shape.cols);
  layout::validate(compute, layout::Cover::all);
  check_planes(spec);
  check_unequal(spec, cuts);
  ParameterLayouts layouts{.compute = compute, .home = compute, .is_cut = spec.sharded, .slots = compute.size()};
  if (spec.sharded) {
    layouts.home = layout::unique_home(compute);
    layouts.together = rows_together(spec);
    layout::validate(layouts.home, layout::Cover::exact);
    if (matrices_of(spec) > 1) {
      for (const layout::LocalLayout& part : layouts.home.ranks)
        layouts.matrix_rows.push_back(matrix_rows_of(spec, part));
      check_stack(spec, layouts, cuts);
    }
  }
  if (!cuts.any_reduced()) return layouts;
  layouts.slots = cuts.slots;
  add_replicas(spec, cuts, layouts);
  return layouts;
}

namespace {

// Sets the layouts over the ranks of Transfer::replicas in a mesh with dead places.
void set_replicas(const Cuts& cuts, const Place& place, RankParts& parts) {
  const bool over_all = !parts.layouts.replicas.empty();
  for (int replica = 0; replica < cuts.replicas; ++replica) {
    if (replica == place.replica)
      parts.summing_rank += over_all ? cuts.number_in_replica(place.part, place.compute) : place.part;
    parts.storage_by_replica.push_back(over_all ? parts.layouts.replicas[static_cast<std::size_t>(replica)]
                                                : parts.layouts.stored(place.compute, cuts.parts_of(replica)));
    if (replica < place.replica) parts.summing_rank += parts.storage_by_replica.back().size();
  }
}

// Sets the parts that each rank of Transfer::replicas updates. Only some replicas update in a mesh with dead places.
void set_states(const Cuts& cuts, const Place& place, RankParts& parts) {
  const std::vector<int> updating = cuts.updating_replicas();
  const int count = static_cast<int>(updating.size());
  const auto own = std::ranges::find(updating, place.replica);
  if (cuts.shapes.empty()) {
    parts.states = parts.layouts.updated(parts.local_storage, count);
  } else {
    for (int replica = 0; replica < cuts.replicas; ++replica) {
      const auto number = std::ranges::find(updating, replica) - updating.begin();
      for (const layout::LocalLayout& local : parts.storage_by_replica[static_cast<std::size_t>(replica)].ranks)
        parts.states.push_back(number == count ? layout::LocalLayout{}
                                               : parts.layouts.updated(local, count)[static_cast<std::size_t>(number)]);
    }
  }
  parts.local_state = parts.states[static_cast<std::size_t>(parts.summing_rank)];
  if (own == updating.end()) return;
  const std::vector<layout::LocalLayout> shares = parts.layouts.updated(parts.local_storage, count);
  for (auto before = shares.begin(); before - shares.begin() < own - updating.begin(); ++before)
    parts.state_offset += before->size;
}

}  // namespace

StoredParts::StoredParts(const ParameterLayouts& layouts, const Cuts& cuts)
    : over_replica_(!layouts.groups.empty() && cuts.parts > 1) {
  for (int part = 0; part < cuts.parts; ++part) {
    const int ranks = layouts.group(part).home.size();
    first_.push_back(static_cast<int>(places_.size()));
    for (int rank = 0; rank < ranks; ++rank) places_.push_back({.compute = rank, .part = part});
  }
  if (over_replica_) {
    layouts_.push_back(layouts.replicas[static_cast<std::size_t>(cuts.replica)]);
    return;
  }
  for (int rank = 0; rank < layouts.home.size(); ++rank) layouts_.push_back(layouts.stored(rank, cuts.parts));
}

int StoredParts::number_of(const Place& place) const {
  return over_replica_ ? first_[static_cast<std::size_t>(place.part)] + place.compute : place.part;
}

layout::Layout homes_of(const RankParts& parts, const Place& place) {
  if (parts.layouts.groups.size() > 1) return replica_homes(parts.layouts.groups);
  return layout::repeat(layout::select(parts.layouts.home, {place.compute}), parts.storage.size());
}

RankParts rank_parts(ParameterLayouts layouts, const Cuts& cuts, const Place& place) {
  const auto compute = static_cast<std::size_t>(place.compute);
  RankParts parts{.layouts = std::move(layouts)};
  const ParameterLayouts& own = parts.layouts;
  if (own.groups.size() > 1) {
    parts.storage = own.replicas[static_cast<std::size_t>(place.replica)];
    parts.storing_rank = cuts.number_in_replica(place.part, place.compute);
  } else {
    parts.storage = own.stored(place.compute, cuts.parts);
    parts.storing_rank = place.part;
  }
  parts.summing_rank = cuts.shapes.empty() ? place.replica : 0;
  if (!cuts.shapes.empty()) set_replicas(cuts, place, parts);
  const GroupLayouts group = own.group(place.part);
  parts.local_compute = group.compute.ranks[compute];
  parts.local_home = group.home.ranks[compute];
  if (!own.matrix_rows.empty()) parts.matrix_rows = own.matrix_rows[compute];
  parts.local_storage = parts.storage.ranks[static_cast<std::size_t>(parts.storing_rank)];
  parts.local_state = parts.local_storage;
  if (own.is_cut && cuts.splits_state()) set_states(cuts, place, parts);
  return parts;
}

}  // namespace tessera::shard
