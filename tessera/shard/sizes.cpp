#include "tessera/shard/sizes.h"

#include <algorithm>

#include "tessera/base/buffer.h"
#include "tessera/base/error.h"
#include "tessera/layout/redistribute.h"
#include "tessera/shard/reduction_tree.h"
#include "tessera/shard/rows.h"

namespace tessera::shard {
namespace {

// Each row whole, on one compute rank, which computes all of its gradient.
bool has_whole_rows(const ParameterSpec& spec, const ParameterLayouts& layouts) {
  if (!spec.sharded || spec.partial_gradient || layouts.home != spec.compute) return false;
  for (const layout::LocalLayout& local : spec.compute.ranks)
    for (const layout::Piece& piece : local.pieces)
      if (piece.box.cols != spec.compute.shape.cols) return false;
  return true;
}

std::int64_t greatest(const std::vector<layout::LocalLayout>& ranks) {
  std::int64_t size = 0;
  for (const layout::LocalLayout& local : ranks) size = std::max(size, local.size);
  return size;
}

std::int64_t smallest(const std::vector<layout::LocalLayout>& ranks) {
  std::int64_t size = ranks.front().size;
  for (const layout::LocalLayout& local : ranks) size = std::min(size, local.size);
  return size;
}

// Adds to `size` what the gather and the publish of one plane move for compute rank `rank`, and to `scratch` what lies
// between the two hops of a gather.
void add_plane(const PlaneSpec& plane, const ParameterLayouts& layouts, const layout::Plan& over_compute, int rank,
               const Cuts& cuts, schedule::ParameterSize& size, std::int64_t& scratch) {
  const auto at = static_cast<std::size_t>(rank);
  const bool gathers = layouts.is_cut && cuts.parts > 1, overlaps = layouts.home != layouts.compute;
  const std::int64_t home = layouts.home.ranks[at].size;
  const std::vector<layout::LocalLayout> stored = layouts.stored(rank, cuts.parts).ranks;
  std::int64_t others_state = 0;
  if (layouts.is_cut && cuts.splits_state())
    for (const layout::LocalLayout& local : stored)
      for (const layout::LocalLayout& own : layouts.updated(local, cuts.replicas))
        others_state = std::max(others_state, local.size - own.size);
  size.publish_wire += plane.bytes(others_state);
  if (!gathers && !overlaps) return;
  size.gathered += base::align_up(plane.bytes(layouts.compute.ranks[at].size));
  if (gathers && overlaps) scratch += base::align_up(plane.bytes(home));
  const std::int64_t compute_wire = overlaps ? plane.bytes(over_compute.elements_received(rank)) : 0;
  size.gather_compute_wire += compute_wire;
  size.gather_wire += (gathers ? plane.bytes(home - smallest(stored)) : 0) + compute_wire;
}

// Returns the size with what gathers and publishes move. The rest is 0.
schedule::ParameterSize planes_size(const ParameterSpec& spec, const ParameterLayouts& layouts,
                                    const ParameterTypes& types, const Cuts& cuts) {
  schedule::ParameterSize size{.name = spec.name, .domain = spec.domain, .joins = layouts.home == spec.compute};
  const std::vector<PlaneSpec> planes = planes_of(spec, types);
  std::vector<ParameterLayouts> plane_of;
  std::vector<layout::Plan> over_compute;
  for (const PlaneSpec& plane : planes) {
    plane_of.push_back(plane_layouts(spec, plane, layouts));
    over_compute.push_back(size.joins ? layout::Plan{}
                                      : layout::redistribute(plane_of.back().home, plane_of.back().compute));
  }
  for (int rank = 0; rank < spec.compute.size(); ++rank) {
    schedule::ParameterSize own;
    std::int64_t scratch = 0;
    if (is_unpacked(spec))
      own.unpacked = base::align_up(bytes_of(spec.compute.ranks[static_cast<std::size_t>(rank)].size, types.model));
    for (std::size_t p = 0; p < planes.size(); ++p)
      add_plane(planes[p], plane_of[p], over_compute[p], rank, cuts, own, scratch);
    size.publish_wire = std::max(size.publish_wire, own.publish_wire);
    size.gathered = std::max(size.gathered, own.gathered + scratch);
    size.unpacked = std::max(size.unpacked, own.unpacked);
    size.gather_compute_wire = std::max(size.gather_compute_wire, own.gather_compute_wire);
    size.gather_wire = std::max(size.gather_wire, own.gather_wire);
  }
  return size;
}

// Elements that a rank receives for the sum over replicas: of an all-reduce the parts of the others and back, of
// replicas that update parts (ZeRO-1) the others' of its own, of replicas that cut differently all that it stores.
std::int64_t replica_elements(const ParameterLayouts& layouts, const Cuts& cuts, int compute_rank) {
  const std::int64_t others = cuts.replicas - 1;
  if (others == 0) return 0;
  if (!cuts.parts_by_replica.empty()) {
    std::int64_t most = 0;
    for (const int parts : cuts.parts_by_replica)
      most = std::max(most, greatest(layouts.stored(compute_rank, parts).ranks));
    return others * most;
  }
  const std::vector<layout::LocalLayout> stored = layouts.stored(compute_rank, cuts.parts).ranks;
  if (!layouts.is_cut || !cuts.splits_state()) return 2 * others * greatest(stored);
  std::int64_t state = 0;
  for (const layout::LocalLayout& local : stored)
    state = std::max(state, greatest(layouts.updated(local, cuts.replicas)));
  return others * state;
}

// Returns the size of a parameter as if it were gathered whole.
schedule::ParameterSize whole_size(const ParameterSpec& spec, const ParameterLayouts& layouts,
                                   const ParameterTypes& types, const Cuts& cuts) {
  schedule::ParameterSize size = planes_size(spec, layouts, types, cuts);
  if (!spec.trainable) return size;
  const bool sums = sums_compute(spec, layouts.home != spec.compute);
  layout::Layout parts = spec.compute;
  parts.state = layout::State::partial;
  const layout::Plan compute_sum = sums ? layout::redistribute(parts, layouts.home) : layout::Plan{};
  for (int rank = 0; rank < spec.compute.size(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    const std::int64_t compute = spec.compute.ranks[at].size, home = layouts.home.ranks[at].size;
    const quant::DType staged = staging_type(spec, types, sums);
    const std::int64_t produced = base::align_up(bytes_of(compute, staged));
    const std::int64_t rounded = staged != types.wire ? base::align_up(types.wire_bytes(home)) : 0;
    size.staging = std::max(size.staging, produced + (sums ? base::align_up(types.accumulator_bytes(home)) : rounded));
    const std::int64_t over_compute = sums ? types.accumulator_bytes(compute_sum.elements_received(rank)) : 0;
    size.reduce_compute_wire = std::max(size.reduce_compute_wire, over_compute);
    const layout::Layout stored = layouts.stored(rank, cuts.parts);
    for (int part = 0; part < cuts.parts; ++part) {
      const ReductionTree::Bytes bytes =
          tree_of(stored, cuts, {.compute = rank, .part = part}).bytes(types.wire, types.accumulator);
      const std::int64_t scratch =
          base::align_up(bytes.within) + base::align_up(bytes.sums) + base::align_up(bytes.between);
      size.scratch = std::max(size.scratch, (sums ? rounded : 0) + scratch);
      size.reduce_wire = std::max(size.reduce_wire, over_compute + bytes.within + bytes.between);
    }
    const std::int64_t wire = types.accumulator_bytes(replica_elements(layouts, cuts, rank));
    const bool is_all_reduced = cuts.parts_by_replica.empty() && !(layouts.is_cut && cuts.splits_state());
    size.replica_wire = std::max(size.replica_wire, is_all_reduced ? wire / cuts.replicas : wire);
  }
  return size;
}

}  // namespace

bool exchanges_rows(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types,
                    const Cuts& cuts) {
  if (spec.reads.per_microbatch == 0 || spec.reads.lookup == Lookup::gather || cuts.most_parts() == 1) return false;
  const bool whole_rows = has_whole_rows(spec, layouts) && spec.planes.empty() && !spec.encoding && cuts.copies == 1;
  TESSERA_CHECK(whole_rows || spec.reads.lookup != Lookup::rows,
                "parameter '{}': rows travel by index only where each is on one compute rank and stored once in a "
                "replica, in one "
                "plane of the model's type",
                spec.name);
  if (!whole_rows || spec.reads.lookup == Lookup::rows) return whole_rows;
  Cuts most = cuts;
  most.parts = cuts.most_parts();
  const schedule::ParameterSize whole = whole_size(spec, layouts, types, most);
  const RowMessages messages = messages_of(spec, layouts, most.parts);
  const std::int64_t back = spec.trainable ? messages.exchanged(types.wire) : 0;
  return messages.exchanged(types.model) + back < whole.gather_wire + whole.reduce_wire;
}

schedule::ParameterSize parameter_size(const ParameterSpec& spec, const ParameterLayouts& layouts,
                                       const ParameterTypes& types, const Cuts& cuts) {
  schedule::ParameterSize size = whole_size(spec, layouts, types, cuts);
  if (!exchanges_rows(spec, layouts, types, cuts)) return size;
  size.gathered = size.gather_wire = 0;
  if (!spec.trainable) return size;
  const RowMessages messages = messages_of(spec, layouts, cuts.parts);
  size.staging = messages.staging(types);
  size.scratch = messages.scratch(types);
  size.reduce_wire = messages.exchanged(types.wire);
  return size;
}

std::int64_t exchange_bytes(const ParameterLayouts& layouts, const ParameterTypes& types, const Cuts& cuts,
                            const Place& place) {
  const ReductionTree tree = tree_of(layouts.stored(place.compute, cuts.parts), cuts, place);
  const ReductionTree::Bytes bytes = tree.bytes(types.wire, types.accumulator);
  return bytes.within + bytes.between;
}

}  // namespace tessera::shard
