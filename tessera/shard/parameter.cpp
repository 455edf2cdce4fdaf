#include "tessera/shard/parameter.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/layout/dense.h"
#include "tessera/layout/home.h"
#include "tessera/shard/encoded.h"
#include "tessera/shard/sizes.h"

namespace tessera::shard {
namespace {

// A GEMM reads the local buffer as one matrix.
void check_dense(const layout::LocalLayout& local, const std::string& name) {
  TESSERA_CHECK(layout::is_dense(local),
                "parameter '{}': the compute layout of a rank must be one dense matrix without padding: rows of one "
                "width, or ranges of columns side by side; {} of its {} elements are covered",
                name, local.covered(), local.size);
}

void check_planes(const ParameterSpec& spec) {
  TESSERA_CHECK(!spec.encoding || spec.planes.empty(),
                "parameter '{}': {} planes and an encoding, expected one of both", spec.name, spec.planes.size());
  TESSERA_CHECK(spec.planes.size() <= kMostPlanes, "parameter '{}': {} planes, expected {} at most", spec.name,
                spec.planes.size(), kMostPlanes);
  for (const PlaneSpec& plane : spec.planes)
    TESSERA_CHECK(plane.tile.rows >= 1 && plane.tile.cols >= 1,
                  "parameter '{}': plane '{}' has tiles of {} x {}, expected 1 x 1 or more", spec.name, plane.name,
                  plane.tile.rows, plane.tile.cols);
  TESSERA_CHECK(spec.planes.empty() || spec.planes.front().tile.is_element(),
                "parameter '{}': the first plane has tiles of {} x {}, expected an element for each of the weight's",
                spec.name, spec.planes.front().tile.rows, spec.planes.front().tile.cols);
}

// Storage is cut after a multiple of so many rows, which keeps the tiles of all planes whole.
std::int64_t rows_together(const ParameterSpec& spec) {
  std::int64_t rows = spec.rows_together;
  for (const PlaneSpec& plane : planes_of(spec, {})) rows = std::lcm(rows, plane.tile.rows);
  return rows;
}

RankParts parts_of(ParameterLayouts layouts, const Cuts& cuts, const Place& place) {
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

std::vector<Plane> make_planes(const ParameterSpec& spec, const ParameterTypes& types, const ParameterLayouts& layouts,
                               const Cuts& cuts, const Place& place) {
  std::vector<Plane> planes;
  for (PlaneSpec& plane_spec : planes_of(spec, types)) {
    Plane plane;
    static_cast<RankParts&>(plane) = parts_of(plane_layouts(spec, plane_spec, layouts), cuts, place);
    plane.spec = std::move(plane_spec);
    plane.data = base::Buffer(static_cast<std::size_t>(plane.bytes(plane.local_storage.size)), place.device);
    plane.data.fill_zero();
    planes.push_back(std::move(plane));
  }
  return planes;
}

}  // namespace

bool is_unpacked(const ParameterSpec& spec) {
  if (!spec.encoding) return false;
  if (spec.product == quant::Format::bf16 || spec.looked_up) return true;
  const quant::Encoding as_multiplied =
      spec.is_copy ? quant::columnwise_encoding(spec.product) : quant::weight_encoding(spec.product);
  return *spec.encoding != as_multiplied;
}

ParameterSpec backward_copy(const ParameterSpec& spec) {
  TESSERA_CHECK(spec.backward, "parameter '{}' has the same format in both passes", spec.name);
  ParameterSpec copy = spec;
  copy.name += " (backward)";
  copy.encoding = spec.backward->encoding;
  copy.backward.reset();
  copy.reads = {};
  copy.trainable = false;
  copy.is_copy = true;
  return copy;
}

std::vector<PlaneSpec> planes_of(const ParameterSpec& spec, const ParameterTypes& types) {
  if (spec.encoding) return encoded_planes(*spec.encoding);
  if (spec.planes.empty()) return {{.type = types.model}};
  return spec.planes;
}

layout::Layout ParameterLayouts::stored(int compute_rank, int parts) const {
  const layout::Layout part = layout::select(home, {compute_rank});
  return is_cut ? layout::cut_local_rows(part, parts, together) : layout::repeat(part, parts);
}

std::vector<layout::LocalLayout> ParameterLayouts::updated(const layout::LocalLayout& local, int replicas) const {
  return layout::cut_local_rows({.shape = home.shape, .ranks = {local}}, replicas, together).ranks;
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
  TESSERA_CHECK(compute.shape == shape, "parameter '{}': layout of {} x {} for a logical shape of {} x {}", spec.name,
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

std::int64_t ShardedParameter::columns_of_sum(int replicas) const {
  if (!spec.trainable || !spec.sharded || by_rows || replicas > 1 || local_storage.pieces.empty()) return 0;
  const std::int64_t columns = local_storage.pieces.front().box.cols;
  std::int64_t end = 0;
  for (const layout::Piece& piece : local_storage.pieces) {
    if (piece.offset != end || piece.box.cols != columns || piece.stride != columns) return 0;
    end += piece.box.elements();
  }
  return end == local_storage.size ? columns : 0;
}

ShardedParameter make_parameter(ParameterSpec spec, const ParameterTypes& types, const Cuts& cuts, const Place& place) {
  const layout::Layout& compute = spec.compute;
  TESSERA_CHECK(place.compute >= 0 && place.compute < compute.size(),
                "parameter '{}': compute rank {} of a layout over {}", spec.name, place.compute, compute.size());
  TESSERA_CHECK(!cuts.splits_state() || cuts.parts_by_replica.empty(),
                "parameter '{}': the optimizer's state cannot be split (ZeRO-1) over replicas with dead ranks",
                spec.name);
  check_encoding(spec, types);
  ShardedParameter parameter;
  parameter.types = types;
  parameter.place = place;
  const ParameterLayouts layouts = layouts_of(spec);
  parameter.by_rows = exchanges_rows(spec, layouts, types, cuts);
  static_cast<RankParts&>(parameter) = parts_of(layouts, cuts, place);
  check_dense(parameter.local_compute, spec.name);
  parameter.planes = make_planes(spec, types, layouts, cuts, place);

  if (spec.encoding && has_tensor_scale(*spec.encoding)) {
    parameter.tensor_scale = base::Buffer(sizeof(float), place.device);
    parameter.tensor_scale.fill_zero();
  }

  const std::int64_t elements = parameter.local_storage.size;
  parameter.spec.is_copy = spec.is_copy;
  if (parameter.has_master())
    parameter.master =
        base::Buffer(static_cast<std::size_t>(types.accumulator_bytes(parameter.local_state.size)), place.device);
  parameter.master.fill_zero();
  if (spec.trainable)
    parameter.main_grad = base::Buffer(static_cast<std::size_t>(types.accumulator_bytes(elements)), place.device);
  parameter.main_grad.fill_zero();
  if (parameter.by_rows && spec.trainable)
    parameter.row_states = base::Buffer(static_cast<std::size_t>(elements / compute.shape.cols), place.device);
  parameter.row_states.fill_zero();
  parameter.spec = std::move(spec);
  return parameter;
}

layout::LocalLayout counted_part(const ShardedParameter& parameter) {
  const Place& place = parameter.place;
  const std::vector<layout::LocalLayout>& used = parameter.layouts.compute.ranks;
  const auto first_of_part = std::ranges::find(used, parameter.local_compute) - used.begin();
  const bool is_first = place.copy == 0 && (place.replica == 0 || parameter.splits_state()) &&
                        (parameter.layouts.is_cut || (place.part == 0 && first_of_part == place.compute));
  return is_first ? parameter.local_state : layout::LocalLayout{};
}

}  // namespace tessera::shard
