#include "tessera/shard/parameter.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/layout/home.h"
#include "tessera/shard/encoded.h"
#include "tessera/shard/sizes.h"

namespace tessera::shard {
namespace {

// A GEMM reads the local buffer as one matrix: its pieces must be rows of one width, stacked densely.
void check_dense(const layout::LocalLayout& local, const std::string& name) {
  std::int64_t at = 0;
  for (const layout::Piece& piece : local.pieces) {
    const std::int64_t width = local.pieces.front().box.cols;
    TESSERA_CHECK(piece.box.cols == width && piece.stride == width && piece.offset == at,
                  "parameter '{}': the compute layout of a rank must stack rows of one width densely", name);
    at += piece.box.elements();
  }
  TESSERA_CHECK(at == local.size, "parameter '{}': a compute layout has no padding, but {} of {} elements are covered",
                name, at, local.size);
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

RankParts parts_of(const layout::Layout& compute, const ParameterLayouts& layouts, const Place& place) {
  const auto tp = static_cast<std::size_t>(place.tp_rank);
  const auto stored = tp + compute.ranks.size() * static_cast<std::size_t>(place.gtp_rank);
  RankParts parts{.local_compute = compute.ranks[tp],
                  .local_home = layouts.home.ranks[tp],
                  .local_storage = layouts.storage.ranks[stored]};
  parts.local_state = parts.local_storage;
  if (layouts.state.size() <= layouts.storage.size()) return parts;
  const auto replica = static_cast<std::size_t>(layouts.storage.size());
  for (std::size_t at = stored; at < layouts.state.ranks.size(); at += replica)
    parts.states.push_back(layouts.state.ranks[at]);
  const auto own = static_cast<std::size_t>(place.dp_rank);
  for (std::size_t before = 0; before < own; ++before) parts.state_offset += parts.states[before].size;
  parts.local_state = parts.states[own];
  return parts;
}

std::vector<Plane> make_planes(const ParameterSpec& spec, const ParameterTypes& types, const ParameterLayouts& layouts,
                               const Cuts& cuts, const Place& place) {
  std::vector<Plane> planes;
  for (PlaneSpec& plane_spec : planes_of(spec, types)) {
    Plane plane;
    plane.layouts = plane_layouts(spec, plane_spec, layouts, cuts);
    plane.spec = std::move(plane_spec);
    static_cast<RankParts&>(plane) = parts_of(plane.layouts.compute, plane.layouts, place);
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

PlaneLayouts plane_layouts(const ParameterSpec& spec, const PlaneSpec& plane, const ParameterLayouts& layouts,
                           const Cuts& cuts) {
  if (plane.tile.is_element()) return {layouts, spec.compute};
  PlaneLayouts grid;
  grid.compute = grid.home = layout::tile_grid(layouts.home, plane.tile);
  if (layouts.home != spec.compute) {
    std::optional<layout::Layout> overlapping = layout::overlapping_tile_grid(spec.compute, layouts.home, plane.tile);
    TESSERA_CHECK(overlapping,
                  "parameter '{}': tp ranks' parts overlap and begin or end inside a tile of {} x {} of plane '{}'",
                  spec.name, plane.tile.rows, plane.tile.cols, plane.name);
    grid.compute = std::move(*overlapping);
  }
  if (!spec.sharded) {
    grid.storage = grid.state = layout::repeat(grid.home, cuts.gtp);
    return grid;
  }
  const std::int64_t together = rows_together(spec) / plane.tile.rows;
  grid.storage = layout::cut_local_rows(grid.home, cuts.gtp, together);
  grid.state = cuts.splits_state() ? layout::cut_local_rows(grid.storage, cuts.dp, together) : grid.storage;
  return grid;
}

ParameterLayouts layouts_of(const ParameterSpec& spec, const Cuts& cuts) {
  const layout::Layout& compute = spec.compute;
  const layout::Shape shape = layout::matrix_shape(spec.dims);
  TESSERA_CHECK(compute.shape == shape, "parameter '{}': layout of {} x {} for a logical shape of {} x {}", spec.name,
                compute.shape.rows, compute.shape.cols, shape.rows, shape.cols);
  layout::validate(compute, layout::Cover::all);
  check_planes(spec);
  if (!spec.sharded) {
    const layout::Layout whole = layout::repeat(compute, cuts.gtp);
    return {compute, whole, whole};
  }
  ParameterLayouts layouts{.home = layout::unique_home(compute)};
  const std::int64_t together = rows_together(spec);
  layouts.storage = layout::cut_local_rows(layouts.home, cuts.gtp, together);
  layouts.state = cuts.splits_state() ? layout::cut_local_rows(layouts.storage, cuts.dp, together) : layouts.storage;
  layout::validate(layouts.state, layout::Cover::exact);
  return layouts;
}

std::int64_t ShardedParameter::columns_of_sum(int dp) const {
  if (!spec.trainable || !spec.sharded || by_rows || dp > 1 || local_storage.pieces.empty()) return 0;
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
  TESSERA_CHECK(place.tp_rank >= 0 && place.tp_rank < compute.size(), "parameter '{}': tp rank {} of a layout over {}",
                spec.name, place.tp_rank, compute.size());
  check_encoding(spec, types);
  ShardedParameter parameter;
  parameter.types = types;
  ParameterLayouts layouts = layouts_of(spec, cuts);
  parameter.by_rows = exchanges_rows(spec, layouts, types, cuts);
  static_cast<RankParts&>(parameter) = parts_of(compute, layouts, place);
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
  parameter.home = std::move(layouts.home);
  parameter.storage = std::move(layouts.storage);
  parameter.state = std::move(layouts.state);
  if (parameter.by_rows && spec.trainable)
    parameter.row_states = base::Buffer(static_cast<std::size_t>(elements / compute.shape.cols), place.device);
  parameter.row_states.fill_zero();
  parameter.spec = std::move(spec);
  return parameter;
}

layout::LocalLayout counted_part(const ShardedParameter& parameter, int rank) {
  const std::vector<layout::LocalLayout>& parts = parameter.state.ranks;
  const auto own = static_cast<std::size_t>(rank);
  if (own >= parts.size() || std::ranges::find(parts, parts[own]) != parts.begin() + rank) return {};
  return parts[own];
}

}  // namespace tessera::shard
