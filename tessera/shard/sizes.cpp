#include "tessera/shard/sizes.h"

#include <algorithm>

#include "tessera/base/buffer.h"
#include "tessera/base/error.h"
#include "tessera/layout/redistribute.h"
#include "tessera/shard/reduction_tree.h"
#include "tessera/shard/rows.h"

namespace tessera::shard {
namespace {

std::int64_t aligned(std::int64_t bytes) {
  return static_cast<std::int64_t>(base::align_up(static_cast<std::size_t>(bytes)));
}

// Each row whole, on one tp rank, which computes all of its gradient.
bool has_whole_rows(const ParameterSpec& spec, const ParameterLayouts& layouts) {
  if (!spec.sharded || spec.partial_gradient || layouts.home != spec.compute) return false;
  for (const layout::LocalLayout& local : spec.compute.ranks)
    for (const layout::Piece& piece : local.pieces)
      if (piece.box.cols != spec.compute.shape.cols) return false;
  return true;
}

// As a weight that is gathered whole.
schedule::ParameterSize size_of_whole(const ParameterSpec& spec, const ParameterLayouts& layouts,
                                      const ParameterTypes& types, const Cuts& cuts) {
  const auto model = static_cast<std::int64_t>(quant::size_of(types.model));
  const auto accumulator = static_cast<std::int64_t>(quant::size_of(types.accumulator));
  const auto wire = static_cast<std::int64_t>(quant::size_of(types.wire));
  const int tp = spec.compute.size(), gtp = cuts.gtp, dp = cuts.dp;
  const bool splits = layouts.state.size() > layouts.storage.size();
  const bool overlaps = layouts.home != spec.compute;
  const bool sums_tp = overlaps || (spec.partial_gradient && tp > 1);
  const bool gathers = spec.sharded && gtp > 1;

  schedule::ParameterSize size{.name = spec.name, .joins = !overlaps};
  layout::Layout parts = spec.compute;
  parts.state = layout::State::partial;
  const layout::Plan tp_sum = sums_tp ? layout::redistribute(parts, layouts.home) : layout::Plan{};
  const layout::Plan tp_gather = overlaps ? layout::redistribute(layouts.home, spec.compute) : layout::Plan{};
  for (int rank = 0; rank < tp; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    const std::int64_t compute = spec.compute.ranks[at].size, home = layouts.home.ranks[at].size;
    std::int64_t shard = 0, smallest_shard = home, state = 0, others_state = 0;
    for (int g = 0; g < gtp; ++g) {
      const std::size_t stored = at + spec.compute.ranks.size() * static_cast<std::size_t>(g);
      const std::int64_t elements = layouts.storage.ranks[stored].size;
      shard = std::max(shard, elements);
      smallest_shard = std::min(smallest_shard, elements);
      for (std::size_t d = 0; splits && d < static_cast<std::size_t>(dp); ++d) {
        const std::int64_t own = layouts.state.ranks[stored + layouts.storage.ranks.size() * d].size;
        state = std::max(state, own);
        others_state = std::max(others_state, elements - own);
      }
    }
    size.publish_wire = std::max(size.publish_wire, others_state * model);
    if (gathers || overlaps) {
      const std::int64_t scratch = gathers && overlaps ? aligned(home * model) : 0;
      size.gathered = std::max(size.gathered, aligned(compute * model) + scratch);
      const std::int64_t over_tp = overlaps ? tp_gather.elements_received(rank) * model : 0;
      const std::int64_t over_gtp = gathers ? (home - smallest_shard) * model : 0;
      size.gather_tp_wire = std::max(size.gather_tp_wire, over_tp);
      size.gather_wire = std::max(size.gather_wire, over_gtp + over_tp);
    }
    if (!spec.trainable) continue;
    const quant::DType staged = staging_type(spec, types, sums_tp);
    const std::int64_t produced = aligned(compute * static_cast<std::int64_t>(quant::size_of(staged)));
    const std::int64_t rounded = staged != types.wire ? aligned(home * wire) : 0;
    size.staging = std::max(size.staging, produced + (sums_tp ? aligned(home * accumulator) : rounded));
    const std::int64_t over_tp = sums_tp ? tp_sum.elements_received(rank) * accumulator : 0;
    size.reduce_tp_wire = std::max(size.reduce_tp_wire, over_tp);
    for (int g = 0; g < gtp; ++g) {
      const ReductionTree::Bytes bytes =
          tree_of(layouts.storage, !spec.sharded, cuts, {rank, g}).bytes(types.wire, types.accumulator);
      const std::int64_t scratch = aligned(bytes.within) + aligned(bytes.sums) + aligned(bytes.between);
      size.scratch = std::max(size.scratch, (sums_tp ? rounded : 0) + scratch);
      size.reduce_wire = std::max(size.reduce_wire, over_tp + bytes.within + bytes.between);
    }
    const std::int64_t parts = (dp - 1) * accumulator;
    size.replica_wire = std::max(size.replica_wire, splits ? state * parts : 2 * shard * parts / dp);
  }
  return size;
}

}  // namespace

bool exchanges_rows(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types,
                    const Cuts& cuts) {
  if (spec.reads.per_microbatch == 0 || spec.reads.lookup == Lookup::gather || cuts.gtp == 1) return false;
  const bool whole_rows = has_whole_rows(spec, layouts);
  TESSERA_CHECK(whole_rows || spec.reads.lookup != Lookup::rows,
                "parameter '{}': rows travel by index only where each is on one tp rank", spec.name);
  if (!whole_rows || spec.reads.lookup == Lookup::rows) return whole_rows;
  const schedule::ParameterSize whole = size_of_whole(spec, layouts, types, cuts);
  const RowMessages messages = messages_of(spec, layouts.storage, cuts.gtp);
  const std::int64_t back = spec.trainable ? messages.exchanged(types.wire) : 0;
  return messages.exchanged(types.model) + back < whole.gather_wire + whole.reduce_wire;
}

schedule::ParameterSize size_of(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types,
                                const Cuts& cuts) {
  schedule::ParameterSize size = size_of_whole(spec, layouts, types, cuts);
  if (!exchanges_rows(spec, layouts, types, cuts)) return size;
  size.gathered = size.gather_wire = 0;
  if (!spec.trainable) return size;
  const RowMessages messages = messages_of(spec, layouts.storage, cuts.gtp);
  size.staging = messages.staging(types);
  size.scratch = messages.scratch(types);
  size.reduce_wire = messages.exchanged(types.wire);
  return size;
}

std::int64_t exchange_bytes(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types,
                            const Cuts& cuts, int tp_rank, int gtp_rank) {
  const ReductionTree tree = tree_of(layouts.storage, !spec.sharded, cuts, {tp_rank, gtp_rank});
  const ReductionTree::Bytes bytes = tree.bytes(types.wire, types.accumulator);
  return bytes.within + bytes.between;
}

}  // namespace tessera::shard
