#include "tessera/shard/parameter_layouts.h"

#include <numeric>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/layout/home.h"
#include "tessera/shard/encoded.h"

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

// Storage is cut after a multiple of this number of rows, which keeps the tiles of all planes whole.
std::int64_t rows_together(const ParameterSpec& spec) {
  std::int64_t rows = spec.rows_together;
  for (const PlaneSpec& plane : planes_of(spec, {})) rows = std::lcm(rows, plane.tile.rows);
  return rows;
}

}  // namespace

std::vector<PlaneSpec> planes_of(const ParameterSpec& spec, const ParameterTypes& types) {
  if (spec.encoding) return encoded_planes(*spec.encoding);
  if (spec.planes.empty()) return {{.type = types.model}};
  return spec.planes;
}

ParameterLayouts plane_layouts(const ParameterSpec& spec, const PlaneSpec& plane, const ParameterLayouts& layouts) {
  if (plane.tile.is_element()) return layouts;
  ParameterLayouts grid{.is_cut = layouts.is_cut, .together = layouts.together / plane.tile.rows};
  grid.compute = grid.home = layout::tile_grid(layouts.home, plane.tile);
  if (!layouts.overlaps()) return grid;
  std::optional<layout::Layout> overlapping = layout::overlapping_tile_grid(layouts.compute, layouts.home, plane.tile);
  TESSERA_CHECK(overlapping,
                "parameter '{}': compute ranks' parts overlap and begin or end inside a tile of {} x {} of plane '{}'",
                spec.name, plane.tile.rows, plane.tile.cols, plane.name);
  grid.compute = std::move(*overlapping);
  return grid;
}

ParameterLayouts layouts_of(const ParameterSpec& spec) {
  const layout::Layout& compute = spec.compute;
  const layout::Shape shape = layout::matrix_shape(spec.dims);
  TESSERA_CHECK(compute.shape == shape,
                "parameter '{}': the layout has the shape {} x {}, expected the logical shape {} x {}", spec.name,
                compute.shape.rows, compute.shape.cols, shape.rows, shape.cols);
  layout::validate(compute, layout::Cover::all);
  check_planes(spec);
  ParameterLayouts layouts{.compute = compute, .home = compute, .is_cut = spec.sharded};
  if (!spec.sharded) return layouts;
  layouts.home = layout::unique_home(compute);
  layouts.together = rows_together(spec);
  layout::validate(layouts.home, layout::Cover::exact);
  return layouts;
}

RankParts rank_parts(ParameterLayouts layouts, const Cuts& cuts, const Place& place) {
  const auto compute = static_cast<std::size_t>(place.compute);
  RankParts parts{.layouts = std::move(layouts)};
  const ParameterLayouts& own = parts.layouts;
  parts.storage = own.stored(place.compute, cuts.parts);
  for (const int count : cuts.parts_by_replica) parts.storage_by_replica.push_back(own.stored(place.compute, count));
  parts.local_compute = own.compute.ranks[compute];
  parts.local_home = own.home.ranks[compute];
  parts.local_storage = parts.storage.ranks[static_cast<std::size_t>(place.part)];
  parts.local_state = parts.local_storage;
  if (!own.is_cut || !cuts.splits_state()) return parts;
  parts.states = own.updated(parts.local_storage, cuts.replicas);
  const auto replica = static_cast<std::size_t>(place.replica);
  for (std::size_t before = 0; before < replica; ++before) parts.state_offset += parts.states[before].size;
  parts.local_state = parts.states[replica];
  return parts;
}

}  // namespace tessera::shard
