#include "tessera/shard/sizes.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/memory/buffer.h"
#include "tessera/comm/packing.h"
#include "tessera/layout/redistribute.h"
#include "tessera/quant/formats/columnwise.h"
#include "tessera/shard/formats/stack_part.h"
#include "tessera/shard/parameter_layouts.h"
#include "tessera/shard/rows/rows.h"
#include "tessera/shard/ways/reduction_tree.h"
#include "tessera/shard/ways/way_bytes.h"

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

// Returns the elements that a rank with the gradient `home` packs into its message to each rank of `storage`. A message
// is packed if its elements are not contiguous in the gradient.
std::vector<std::int64_t> packed_elements(const layout::LocalLayout& home, const layout::Layout& storage) {
  const layout::LocalLayout rest = layout::replicated(storage.shape, 1).ranks.front();  // every element needs a source
  std::vector<layout::LocalLayout> given(storage.ranks.size()), owned = storage.ranks;
  const int source = storage.size();
  given.insert(given.end(), {home, rest});
  owned.resize(given.size());
  const layout::TransferPlan plan =
      layout::redistribute_add({.shape = storage.shape, .ranks = std::move(given), .state = layout::State::partial},
                               {.shape = storage.shape, .ranks = std::move(owned)});
  std::vector<std::int64_t> elements(storage.ranks.size(), 0);
  for (const comm::BoxMessage& message : comm::box_messages(plan, source).sends)
    if (!message.run) elements[static_cast<std::size_t>(message.peer)] = message.elements;
  return elements;
}

// Computes the memory of GradientAdditions in a replica whose compute groups have unequal sizes. Ranks of equal groups
// have equal gradients, so the messages of each different gradient are planned once. additions_of() plans the messages
// of all pairs of ranks.
class PackedScratch {
 public:
  PackedScratch(const StoredParts& stored, const ParameterLayouts& layouts, const Cuts& cuts)
      : stored_(stored), layouts_(layouts), parts_(cuts.parts) {}

  std::int64_t elements(const Place& place) {
    const bool gives =
        layouts_.is_cut || place.compute == 0;  // one rank of a group gives a vector that all ranks store
    const std::int64_t received = (parts_ - (gives ? 1 : 0)) * stored_.of(place).size;
    if (!gives) return received;
    const GroupLayouts& group = layouts_.groups[static_cast<std::size_t>(place.part)];
    const Packed& packed = packed_of(group.home.ranks[static_cast<std::size_t>(place.compute)]);
    return received + packed.all - packed.by_rank[static_cast<std::size_t>(stored_.number_of(place))];
  }

 private:
  struct Packed {
    layout::LocalLayout home;
    std::vector<std::int64_t> by_rank;  // by rank that receives the message
    std::int64_t all = 0;
  };
  const Packed& packed_of(const layout::LocalLayout& home) {
    const auto known = std::ranges::find(packed_, home, &Packed::home);
    if (known != packed_.end()) return *known;
    std::vector<std::int64_t> by_rank = packed_elements(home, stored_.layouts().front());
    const std::int64_t all = std::accumulate(by_rank.begin(), by_rank.end(), std::int64_t{0});
    packed_.push_back({.home = home, .by_rank = std::move(by_rank), .all = all});
    return packed_.back();
  }

  const StoredParts& stored_;
  const ParameterLayouts& layouts_;
  std::int64_t parts_;
  std::vector<Packed> packed_;
};

// Computes the memory of the exchange of a gradient on each rank.
class Scratch {
 public:
  Scratch(const StoredParts& stored, const ParameterLayouts& layouts, const ParameterTypes& types, const Cuts& cuts)
      : stored_(stored), types_(types) {
    if (layouts.groups.size() > 1) {
      packed_.emplace(stored, layouts, cuts);
      return;
    }
    for (const layout::Layout& storage : stored.layouts()) reductions_.emplace_back(storage, cuts);
  }

  std::int64_t of(const Place& place, int duplicate) {
    if (packed_) return base::align_up(types_.wire_bytes(packed_->elements(place)));
    const ReductionBytes::Bytes bytes =
        reductions_[stored_.index_of(place)].of(stored_.number_of(place), duplicate, types_.wire, types_.accumulator);
    return base::align_up(bytes.within) + base::align_up(bytes.sums) + base::align_up(bytes.between);
  }

 private:
  const StoredParts& stored_;
  const ParameterTypes& types_;
  std::optional<PackedScratch> packed_;     // set if messages are packed
  std::vector<ReductionBytes> reductions_;  // by layout of stored_; empty if messages are packed
};

// Sets the buffer sizes of a gather, as maximums over the ranks of a replica: `gathered` for the planes, including
// those between two hops, `unpacked` for the unpacked weight, and `columnwise` for its columnwise copy.
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
    if (reads_columnwise(spec)) {
      const Matrices of_part = matrices_of_part(spec, layouts.group(place.part).compute.ranks[rank]);
      size.columnwise =
          std::max(size.columnwise,
                   base::align_up(quant::columnwise_layout(*spec.encoding, of_part.matrix, of_part.count).bytes()));
    }
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
  Scratch scratch(stored, layouts, types, cuts);
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

}  // namespace

// The wire type decides the accumulator type, because kernels choose the order of a norm's squares by the type
// (ops::cuda::row_square_sums).
bool writes_main_grad(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types,
                      const Cuts& cuts) {
  const bool is_one_rank = cuts.max_parts() == 1 && cuts.duplicates == 1 && cuts.replicas == 1 && !cuts.any_reduced();
  return is_one_rank && cuts.one_microbatch && spec.trainable && spec.produced_once && !sums_compute(spec, layouts) &&
         quant::accumulator_of(types.wire) == types.accumulator;
}

bool has_master(const ParameterSpec& spec, const ParameterTypes& types) {
  if (spec.is_backward_weight) return false;
  const std::vector<PlaneSpec> planes = planes_of(spec, types);
  return planes.size() > 1 || planes.front().type != types.accumulator;
}

bool can_split_master(const ParameterSpec& spec, const ParameterTypes& types) {
  if (spec.is_backward_weight || spec.backward || types.accumulator != quant::DType::fp32) return false;
  const std::vector<PlaneSpec> planes = planes_of(spec, types);
  return planes.size() == 1 && planes.front().type == quant::DType::bf16;
}

bool splits_master(const ParameterSpec& spec, const ParameterTypes& types, const Cuts& cuts) {
  return cuts.split_masters && can_split_master(spec, types);
}

std::int64_t master_bytes(const ParameterSpec& spec, const ParameterTypes& types, const Cuts& cuts,
                          std::int64_t elements) {
  if (!has_master(spec, types)) return 0;
  constexpr std::int64_t kLowHalf = 2;
  return splits_master(spec, types, cuts) ? kLowHalf * elements : types.accumulator_bytes(elements);
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

bool has_row_gradients(const ParameterSpec& spec, const ParameterLayouts& layouts, const ParameterTypes& types,
                       const Cuts& cuts) {
  if (!spec.trainable) return false;
  if (cuts.max_parts() > 1) return exchanges_rows(spec, layouts, types, cuts);
  if (spec.reads.per_microbatch == 0 || spec.reads.lookup == Lookup::gather || cuts.any_reduced()) return false;
  if (!has_whole_rows(spec, layouts) || spec.produced_once || cuts.duplicates > 1) return false;
  const RowMessages messages = messages_of(spec, layouts, cuts.parts);
  return spec.reads.lookup == Lookup::rows || messages.rows < messages.stored;
}

schedule::ParameterSize parameter_size(const ParameterSpec& spec, const ParameterLayouts& layouts,
                                       const ParameterTypes& types, const Cuts& cuts) {
  const bool by_rows = exchanges_rows(spec, layouts, types, cuts);
  Ways most = WayBytes(spec, layouts, types, cuts, by_rows).most();
  schedule::ParameterSize size{.name = spec.name,
                               .domain = spec.domain,
                               // Unequal replicas have other units, but sum over replicas in one order.
                               .is_vector = spec.dims.size() == 1 && cuts.shapes.empty(),
                               .gather = std::move(most.gather),
                               .reduce = std::move(most.reduce),
                               .replicas = std::move(most.replicas),
                               .publish = std::move(most.publish)};
  if (!by_rows) add_gather_buffers(spec, layouts, types, cuts, size);
  if (has_row_gradients(spec, layouts, types, cuts)) {
    const RowMessages messages = messages_of(spec, layouts, cuts.parts);
    size.staging = messages.staging(types);
    size.scratch = messages.scratch(types);
  } else if (spec.trainable && !writes_main_grad(spec, layouts, types, cuts)) {
    add_reduce_buffers(spec, layouts, types, cuts, size);
  }
  return size;
}

}  // namespace tessera::shard
