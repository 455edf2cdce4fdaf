#include "tessera/shard/sizes.h"

#include <algorithm>

#include "tessera/base/buffer.h"
#include "tessera/base/error.h"
#include "tessera/shard/gradient_additions.h"
#include "tessera/shard/parameter_layouts.h"
#include "tessera/shard/reduction_tree.h"
#include "tessera/shard/rows/rows.h"
#include "tessera/shard/way_bytes.h"

namespace tessera::shard {
namespace {

// Returns whether each row is whole on one compute rank, and this rank computes its whole gradient.
bool has_whole_rows(const ParameterSpec& spec, const ParameterLayouts& layouts) {
  if (!spec.sharded || spec.partial_gradient || layouts.overlaps()) return false;
  for (const layout::LocalLayout& local : spec.compute.ranks)
    for (const layout::Piece& piece : local.pieces)
      if (piece.box.cols != spec.compute.shape.cols) return false;
  return true;
}

// Computes the memory of the exchange of a gradient on each rank.
class Scratch {
 public:
  Scratch(const StoredParts& stored, const ParameterLayouts& layouts, const ParameterTypes& types, const Cuts& cuts)
      : stored_(stored), layouts_(layouts), types_(types), cuts_(cuts) {
    if (!packs())
      for (const layout::Layout& storage : stored.layouts()) reductions_.emplace_back(storage, cuts);
  }

  std::int64_t of(Place place, int duplicate) const {
    if (packs()) {
      place.replica = cuts_.replica;
      return static_cast<std::int64_t>(
          additions_of(rank_parts(layouts_, cuts_, place), cuts_, place, types_).scratch_bytes());
    }
    const ReductionBytes::Bytes bytes =
        reductions_[stored_.index_of(place)].of(stored_.number_of(place), duplicate, types_.wire, types_.accumulator);
    return base::align_up(bytes.within) + base::align_up(bytes.sums) + base::align_up(bytes.between);
  }

 private:
  bool packs() const { return layouts_.groups.size() > 1; }  // whether messages are packed

  const StoredParts& stored_;
  const ParameterLayouts& layouts_;
  const ParameterTypes& types_;
  const Cuts& cuts_;
  std::vector<ReductionBytes> reductions_;  // by layout of stored_; empty if messages are packed
};

// Sets the buffer sizes of a gather, as maximums over the ranks of a replica: `gathered` for the planes, including
// those between two hops, and `unpacked` for the unpacked weight.
void add_gather_buffers(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types,
                        const Cuts& cuts, schedule::ParameterSize& size) {
  std::vector<PlaneSpec> planes = planes_of(spec, types);
  std::vector<ParameterLayouts> plane_of;
  for (const PlaneSpec& plane : planes) plane_of.push_back(plane_layouts(spec, plane, layouts));
  const bool gathers = layouts.is_cut && cuts.parts > 1, overlaps = layouts.overlaps();
  const StoredParts stored(layouts, cuts);
  for (const Place& place : stored.places()) {
    const auto rank = static_cast<std::size_t>(place.compute);
    if (is_unpacked(spec))
      size.unpacked = std::max(
          size.unpacked, base::align_up(bytes_of(layouts.group(place.part).compute.ranks[rank].size, types.model)));
    std::int64_t gathered = 0;
    for (std::size_t p = 0; p < planes.size(); ++p) {
      const GroupLayouts group = plane_of[p].group(place.part);
      if (gathers || overlaps) gathered += base::align_up(planes[p].bytes(group.compute.ranks[rank].size));
      if (gathers && overlaps) gathered += base::align_up(planes[p].bytes(group.home.ranks[rank].size));
    }
    size.gathered = std::max(size.gathered, gathered);
  }
}

// Sets the buffer sizes of a gradient and of its exchange, as maximums over the ranks of a replica.
void add_reduce_buffers(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types,
                        const Cuts& cuts, schedule::ParameterSize& size) {
  const bool sums = sums_compute(spec, layouts);
  const quant::DType staged = staging_type(spec, types, sums);
  const StoredParts stored(layouts, cuts);
  const Scratch scratch(stored, layouts, types, cuts);
  for (const Place& place : stored.places()) {
    const auto at = static_cast<std::size_t>(place.compute);
    const GroupLayouts group = layouts.group(place.part);
    const std::int64_t home = group.home.ranks[at].size;
    const std::int64_t produced = base::align_up(bytes_of(group.compute.ranks[at].size, staged));
    const std::int64_t rounded = staged != types.wire ? base::align_up(types.wire_bytes(home)) : 0;
    size.staging = std::max(size.staging, produced + (sums ? base::align_up(types.accumulator_bytes(home)) : rounded));
    for (int duplicate = 0; duplicate < cuts.duplicates; ++duplicate)
      size.scratch = std::max(size.scratch, (sums ? rounded : 0) + scratch.of(place, duplicate));
  }
}

// Returns the size of a parameter. by_rows: whether ranks exchange single rows of the parameter. Otherwise the whole
// parameter is gathered.
schedule::ParameterSize size_of(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types,
                                const Cuts& cuts, bool by_rows) {
  Ways most = WayBytes(spec, layouts, types, cuts, by_rows).most();
  schedule::ParameterSize size{.name = spec.name,
                               .domain = spec.domain,
                               .gather = std::move(most.gather),
                               .reduce = std::move(most.reduce),
                               .replicas = std::move(most.replicas),
                               .publish = std::move(most.publish)};
  if (by_rows) {
    const RowMessages messages = messages_of(spec, layouts, cuts.parts);
    if (spec.trainable) size.staging = messages.staging(types);
    if (spec.trainable) size.scratch = messages.scratch(types);
    return size;
  }
  add_gather_buffers(spec, layouts, types, cuts, size);
  if (spec.trainable && !writes_main_grad(spec, layouts, types, cuts))
    add_reduce_buffers(spec, layouts, types, cuts, size);
  return size;
}

}  // namespace

// The accumulator type is that of the wire type, because kernels choose the order of the squares of a norm by the type
// (ops::cuda::row_square_sums).
bool writes_main_grad(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types,
                      const Cuts& cuts) {
  const bool is_one_rank = cuts.max_parts() == 1 && cuts.duplicates == 1 && cuts.replicas == 1 && !cuts.any_reduced();
  return is_one_rank && cuts.one_microbatch && spec.trainable && spec.produced_once && !sums_compute(spec, layouts) &&
         quant::accumulator_of(types.wire) == types.accumulator;
}

bool exchanges_rows(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types,
                    const Cuts& cuts) {
  if (spec.reads.per_microbatch == 0 || spec.reads.lookup == Lookup::gather || cuts.max_parts() == 1) return false;
  TESSERA_CHECK(!cuts.any_reduced() || spec.reads.lookup != Lookup::rows,
                "parameter '{}': rows travel by index only if no tp group has dead places", spec.name);
  if (cuts.any_reduced()) return false;
  const bool whole_rows =
      has_whole_rows(spec, layouts) && spec.planes.empty() && !spec.encoding && cuts.duplicates == 1;
  TESSERA_CHECK(whole_rows || spec.reads.lookup != Lookup::rows,
                "parameter '{}': rows travel by index only if each row is on one compute rank and stored once in a "
                "replica, in one plane of the model's type",
                spec.name);
  if (!whole_rows || spec.reads.lookup == Lookup::rows) return whole_rows;
  Cuts most = cuts;
  most.parts = cuts.max_parts();
  most.shapes.clear();
  const Ways whole = WayBytes(spec, layouts, types, most, /*by_rows=*/false).most();
  const RowMessages messages = messages_of(spec, layouts, most.parts);
  const std::int64_t back = spec.trainable ? messages.exchanged(types.wire) : 0;
  return messages.exchanged(types.model) + back < total_bytes(whole.gather) + total_bytes(whole.reduce);
}

schedule::ParameterSize parameter_size(const ParameterSpec& spec, const ParameterLayouts& layouts,
                                       const ParameterTypes& types, const Cuts& cuts) {
  return size_of(spec, layouts, types, cuts, exchanges_rows(spec, layouts, types, cuts));
}

}  // namespace tessera::shard
