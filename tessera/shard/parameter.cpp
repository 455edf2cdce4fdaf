#include "tessera/shard/parameter.h"

#include <numeric>

#include "tessera/base/error.h"
#include "tessera/layout/home.h"
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

}  // namespace

ParameterLayouts layouts_of(const ParameterSpec& spec, const Cuts& cuts) {
  const layout::Layout& compute = spec.compute;
  const layout::Shape shape = layout::matrix_shape(spec.dims);
  TESSERA_CHECK(compute.shape == shape, "parameter '{}': layout of {} x {} for a logical shape of {} x {}", spec.name,
                compute.shape.rows, compute.shape.cols, shape.rows, shape.cols);
  layout::validate(compute, layout::Cover::all);
  if (!spec.sharded) {
    const layout::Layout whole = layout::repeat(compute, cuts.gtp);
    return {compute, whole, whole};
  }
  ParameterLayouts layouts{.home = layout::unique_home(compute)};
  layouts.storage = layout::cut_local_rows(layouts.home, cuts.gtp);
  layouts.state = cuts.splits_state() ? layout::cut_local_rows(layouts.storage, cuts.dp) : layouts.storage;
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
  ShardedParameter parameter;
  parameter.types = types;
  ParameterLayouts layouts = layouts_of(spec, cuts);
  parameter.by_rows = exchanges_rows(spec, layouts, types, cuts);
  parameter.home = std::move(layouts.home);
  parameter.storage = std::move(layouts.storage);
  parameter.state = std::move(layouts.state);

  const auto tp = static_cast<std::size_t>(place.tp_rank);
  const auto stored = tp + compute.ranks.size() * static_cast<std::size_t>(place.gtp_rank);
  parameter.local_compute = compute.ranks[tp];
  parameter.local_home = parameter.home.ranks[tp];
  parameter.local_storage = parameter.storage.ranks[stored];
  parameter.local_state = parameter.local_storage;
  if (parameter.state.size() > parameter.storage.size()) {
    const auto replica = static_cast<std::size_t>(parameter.storage.size());
    for (std::size_t at = stored; at < parameter.state.ranks.size(); at += replica)
      parameter.state_counts.push_back(parameter.state.ranks[at].size);
    const auto before = parameter.state_counts.begin();
    parameter.state_offset = std::accumulate(before, before + place.dp_rank, std::int64_t{0});
    parameter.local_state = parameter.state.ranks[stored + replica * static_cast<std::size_t>(place.dp_rank)];
  }
  check_dense(parameter.local_compute, spec.name);

  const auto elements = static_cast<std::size_t>(parameter.local_storage.size);
  parameter.weight = base::Buffer(elements * quant::size_of(types.model), place.device);
  parameter.weight.fill_zero();
  const auto state_elements = static_cast<std::size_t>(parameter.local_state.size);
  if (parameter.has_master())
    parameter.master = base::Buffer(state_elements * quant::size_of(types.accumulator), place.device);
  parameter.master.fill_zero();
  if (spec.trainable) parameter.main_grad = base::Buffer(elements * quant::size_of(types.accumulator), place.device);
  parameter.main_grad.fill_zero();
  if (parameter.by_rows && spec.trainable)
    parameter.row_states = base::Buffer(elements / static_cast<std::size_t>(compute.shape.cols), place.device);
  parameter.row_states.fill_zero();
  parameter.spec = std::move(spec);
  return parameter;
}

}  // namespace tessera::shard
