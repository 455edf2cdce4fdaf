#include "tessera/shard/sizes.h"

#include <algorithm>

#include "tessera/base/buffer.h"
#include "tessera/base/error.h"
#include "tessera/layout/redistribute.h"
#include "tessera/shard/reduction_tree.h"
#include "tessera/shard/rows.h"

namespace tessera::shard {
namespace {

// Each row whole, on one tp rank, which computes all of its gradient.
bool has_whole_rows(const ParameterSpec& spec, const ParameterLayouts& layouts) {
  if (!spec.sharded || spec.partial_gradient || layouts.home != spec.compute) return false;
  for (const layout::LocalLayout& local : spec.compute.ranks)
    for (const layout::Piece& piece : local.pieces)
      if (piece.box.cols != spec.compute.shape.cols) return false;
  return true;
}

// Adds to `size` what the gather and the publish of one plane move for tp rank `rank`, and to `scratch` what lies
// between the two hops of a gather.
void add_plane(const PlaneSpec& plane, const PlaneLayouts& layouts, const layout::Plan& over_tp, int rank,
               const Cuts& cuts, bool sharded, schedule::ParameterSize& size, std::int64_t& scratch) {
  const auto at = static_cast<std::size_t>(rank);
  const std::size_t tp = layouts.home.ranks.size();
  const bool gathers = sharded && cuts.gtp > 1, overlaps = layouts.home != layouts.compute;
  const std::int64_t home = layouts.home.ranks[at].size;
  std::int64_t smallest_shard = home, others_state = 0;
  for (std::size_t stored = at; stored < layouts.storage.ranks.size(); stored += tp) {
    const std::int64_t elements = layouts.storage.ranks[stored].size;
    smallest_shard = std::min(smallest_shard, elements);
    for (std::size_t own = stored; layouts.state.size() > layouts.storage.size() && own < layouts.state.ranks.size();
         own += layouts.storage.ranks.size())
      others_state = std::max(others_state, elements - layouts.state.ranks[own].size);
  }
  size.publish_wire += plane.bytes(others_state);
  if (!gathers && !overlaps) return;
  size.gathered += base::align_up(plane.bytes(layouts.compute.ranks[at].size));
  if (gathers && overlaps) scratch += base::align_up(plane.bytes(home));
  const std::int64_t tp_wire = overlaps ? plane.bytes(over_tp.elements_received(rank)) : 0;
  size.gather_tp_wire += tp_wire;
  size.gather_wire += (gathers ? plane.bytes(home - smallest_shard) : 0) + tp_wire;
}

// Returns the size with what gathers and publishes move. The rest is 0.
schedule::ParameterSize planes_size(const ParameterSpec& spec, const ParameterLayouts& layouts,
                                    const ParameterTypes& types, const Cuts& cuts) {
  schedule::ParameterSize size{.name = spec.name, .joins = layouts.home == spec.compute};
  const std::vector<PlaneSpec> planes = planes_of(spec, types);
  std::vector<PlaneLayouts> plane_of;
  std::vector<layout::Plan> over_tp;
  for (const PlaneSpec& plane : planes) {
    plane_of.push_back(plane_layouts(spec, plane, layouts, cuts));
    over_tp.push_back(size.joins ? layout::Plan{}
                                 : layout::redistribute(plane_of.back().home, plane_of.back().compute));
  }
  for (int rank = 0; rank < spec.compute.size(); ++rank) {
    schedule::ParameterSize own;
    std::int64_t scratch = 0;
    if (is_unpacked(spec))
      own.unpacked = base::align_up(bytes_of(spec.compute.ranks[static_cast<std::size_t>(rank)].size, types.model));
    for (std::size_t p = 0; p < planes.size(); ++p)
      add_plane(planes[p], plane_of[p], over_tp[p], rank, cuts, spec.sharded, own, scratch);
    size.publish_wire = std::max(size.publish_wire, own.publish_wire);
    size.gathered = std::max(size.gathered, own.gathered + scratch);
    size.unpacked = std::max(size.unpacked, own.unpacked);
    size.gather_tp_wire = std::max(size.gather_tp_wire, own.gather_tp_wire);
    size.gather_wire = std::max(size.gather_wire, own.gather_wire);
  }
  return size;
}

// Returns the size of a parameter as if it were gathered whole.
schedule::ParameterSize whole_size(const ParameterSpec& spec, const ParameterLayouts& layouts,
                                   const ParameterTypes& types, const Cuts& cuts) {
  const int tp = spec.compute.size(), gtp = cuts.gtp, dp = cuts.dp;
  const bool splits = layouts.state.size() > layouts.storage.size();
  const bool overlaps = layouts.home != spec.compute;
  const bool sums_tp = overlaps || (spec.partial_gradient && tp > 1);

  schedule::ParameterSize size = planes_size(spec, layouts, types, cuts);
  if (!spec.trainable) return size;
  layout::Layout parts = spec.compute;
  parts.state = layout::State::partial;
  const layout::Plan tp_sum = sums_tp ? layout::redistribute(parts, layouts.home) : layout::Plan{};
  for (int rank = 0; rank < tp; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    const std::int64_t compute = spec.compute.ranks[at].size, home = layouts.home.ranks[at].size;
    std::int64_t shard = 0, state = 0;
    for (int g = 0; g < gtp; ++g) {
      const std::size_t stored = at + spec.compute.ranks.size() * static_cast<std::size_t>(g);
      shard = std::max(shard, layouts.storage.ranks[stored].size);
      for (std::size_t d = 0; splits && d < static_cast<std::size_t>(dp); ++d)
        state = std::max(state, layouts.state.ranks[stored + layouts.storage.ranks.size() * d].size);
    }
    const quant::DType staged = staging_type(spec, types, sums_tp);
    const std::int64_t produced = base::align_up(bytes_of(compute, staged));
    const std::int64_t rounded = staged != types.wire ? base::align_up(types.wire_bytes(home)) : 0;
    size.staging =
        std::max(size.staging, produced + (sums_tp ? base::align_up(types.accumulator_bytes(home)) : rounded));
    const std::int64_t over_tp = sums_tp ? types.accumulator_bytes(tp_sum.elements_received(rank)) : 0;
    size.reduce_tp_wire = std::max(size.reduce_tp_wire, over_tp);
    for (int g = 0; g < gtp; ++g) {
      const ReductionTree::Bytes bytes = tree_of(layouts.storage, cuts, {rank, g}).bytes(types.wire, types.accumulator);
      const std::int64_t scratch =
          base::align_up(bytes.within) + base::align_up(bytes.sums) + base::align_up(bytes.between);
      size.scratch = std::max(size.scratch, (sums_tp ? rounded : 0) + scratch);
      size.reduce_wire = std::max(size.reduce_wire, over_tp + bytes.within + bytes.between);
    }
    const std::int64_t parts = types.accumulator_bytes((dp - 1) * (splits ? state : 2 * shard));
    size.replica_wire = std::max(size.replica_wire, splits ? parts : parts / dp);
  }
  return size;
}

}  // namespace

bool exchanges_rows(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types,
                    const Cuts& cuts) {
  if (spec.reads.per_microbatch == 0 || spec.reads.lookup == Lookup::gather || cuts.gtp == 1) return false;
  const bool whole_rows = has_whole_rows(spec, layouts) && spec.planes.empty() && !spec.encoding;
  TESSERA_CHECK(
      whole_rows || spec.reads.lookup != Lookup::rows,
      "parameter '{}': rows travel by index only where each is on one tp rank, in one plane of the model's type",
      spec.name);
  if (!whole_rows || spec.reads.lookup == Lookup::rows) return whole_rows;
  const schedule::ParameterSize whole = whole_size(spec, layouts, types, cuts);
  const RowMessages messages = messages_of(spec, layouts.storage, cuts.gtp);
  const std::int64_t back = spec.trainable ? messages.exchanged(types.wire) : 0;
  return messages.exchanged(types.model) + back < whole.gather_wire + whole.reduce_wire;
}

schedule::ParameterSize parameter_size(const ParameterSpec& spec, const ParameterLayouts& layouts,
                                       const ParameterTypes& types, const Cuts& cuts) {
  schedule::ParameterSize size = whole_size(spec, layouts, types, cuts);
  if (!exchanges_rows(spec, layouts, types, cuts)) return size;
  size.gathered = size.gather_wire = 0;
  if (!spec.trainable) return size;
  const RowMessages messages = messages_of(spec, layouts.storage, cuts.gtp);
  size.staging = messages.staging(types);
  size.scratch = messages.scratch(types);
  size.reduce_wire = messages.exchanged(types.wire);
  return size;
}

std::int64_t exchange_bytes(const ParameterLayouts& layouts, const ParameterTypes& types, const Cuts& cuts, int tp_rank,
                            int gtp_rank) {
  const ReductionTree tree = tree_of(layouts.storage, cuts, {tp_rank, gtp_rank});
  const ReductionTree::Bytes bytes = tree.bytes(types.wire, types.accumulator);
  return bytes.within + bytes.between;
}

}  // namespace tessera::shard
