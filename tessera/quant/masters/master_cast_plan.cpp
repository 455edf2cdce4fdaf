#include "tessera/quant/masters/master_cast_plan.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::quant {
namespace {

void check_within(const char* what, Slice range, std::int64_t size) {
  if (range.begin < 0 || range.end < range.begin || range.end > size)
    throw Error("master cast: expected {} within [0, {}), got [{}, {})", what, size, range.begin, range.end);
}

// Returns true if the vectors of every row begin at multiples of `bytes`. `first` is the address that the matrix's
// first element would have.
bool vectors_begin_at(std::uintptr_t first, std::int64_t row_bytes, std::int64_t bytes) {
  return first % static_cast<std::uintptr_t>(bytes) == 0 && row_bytes % bytes == 0;
}

bool has_whole_loads(const MasterSlice& slice) {
  const auto size = static_cast<std::int64_t>(size_of(slice.source.type));
  const auto first =
      reinterpret_cast<std::uintptr_t>(slice.source.data) - static_cast<std::uintptr_t>(slice.slice.begin * size);
  return vectors_begin_at(first, slice.matrix.cols * size, 16);
}

bool has_whole_stores(const MasterSlice& slice) {
  const std::int64_t in_byte = elements_in_byte(slice.encoding.element);
  const auto first =
      reinterpret_cast<std::uintptr_t>(slice.data) - static_cast<std::uintptr_t>(slice.slice.begin / in_byte);
  return slice.matrix.cols % kVector == 0 && vectors_begin_at(first, slice.matrix.cols / in_byte, kVector / in_byte);
}

// Returns the smallest range that contains both ranges. Empty ranges are ignored.
Slice hull(Slice a, Slice b) {
  if (a.size() <= 0) return b;
  if (b.size() <= 0) return a;
  return {.begin = std::min(a.begin, b.begin), .end = std::max(a.end, b.end)};
}

std::int64_t pieces_of_slice(MasterItem& item) {
  const MasterSlice& slice = item.slice;
  item.pieces_across = std::max<std::int64_t>(pieces_of(slice.matrix.cols, kPieceCols), 1);
  if (slice.slice.size() == 0) return 0;
  const std::int64_t first = slice.slice.begin / slice.matrix.cols / kPieceRows;
  const std::int64_t last = (slice.slice.end - 1) / slice.matrix.cols / kPieceRows;
  item.first_row = first * kPieceRows;
  return (last - first + 1) * item.pieces_across;
}

// Throws the errors of make_host_master_cast for one slice.
void check_slice(const MasterSlice& slice) {
  if (slice.source.type != DType::bf16 && slice.source.type != DType::fp32)
    throw Error("master cast: expected bf16 or fp32, got {}", name_of(slice.source.type));
  check_extent(slice.encoding, slice.matrix);
  check_within("a slice", slice.slice, slice.matrix.elements());
  check_within("tiles", slice.tiles, scale_extent(slice.encoding, slice.matrix).elements());
}

}  // namespace

NumberedSlices numbered_slices(std::span<const MasterSlice> slices, std::int64_t numbers) {
  if (numbers < 0) numbers = static_cast<std::int64_t>(slices.size());
  NumberedSlices result{.slices = {slices.begin(), slices.end()}, .numbers = numbers};
  std::vector<bool> is_used(static_cast<std::size_t>(numbers));
  for (std::size_t s = 0; s < slices.size(); ++s) {
    MasterSlice& slice = result.slices[s];
    check_slice(slice);
    if (slice.number == -1) slice.number = static_cast<std::int64_t>(s);
    if (slice.number < 0 || slice.number >= numbers)
      throw Error("master cast: slice {} has number {}, expected a number within [0, {})", s, slice.number, numbers);
    const auto number = static_cast<std::size_t>(slice.number);
    if (is_used[number])
      throw Error("master cast: slice {} has number {}, which another slice has too, expected different numbers", s,
                  number);
    is_used[number] = true;
  }
  return result;
}

MasterCastPlan plan_master_cast(std::span<const MasterSlice> slices, std::int64_t numbers) {
  const NumberedSlices numbered = numbered_slices(slices, numbers);
  MasterCastPlan plan;
  plan.numbers = numbered.numbers;
  for (const MasterSlice& slice : numbered.slices) {
    const auto index = static_cast<std::int32_t>(plan.items.size());
    MasterItem item{.slice = slice,
                    .tiling = Tiling(slice.encoding.tile, slice.matrix),
                    .first_tile = plan.tiles,
                    .first_piece = static_cast<std::int64_t>(plan.item_of_piece.size()),
                    .made_tiles = hull(touched_tiles(slice.encoding.tile, slice.matrix, slice.slice), slice.tiles),
                    .first_scale_piece = static_cast<std::int64_t>(plan.item_of_scale_piece.size()),
                    .is_one_tile = slice.encoding.tile == ScaleTile{},
                    .whole_loads = has_whole_loads(slice),
                    .whole_stores = has_whole_stores(slice)};
    plan.item_of_piece.resize(plan.item_of_piece.size() + static_cast<std::size_t>(pieces_of_slice(item)), index);
    // Each slice has at least one block, because that block writes the amax of the whole weight.
    const std::int64_t scale_pieces = std::max<std::int64_t>(pieces_of(item.made_tiles.size(), kScalePiece), 1);
    plan.item_of_scale_piece.resize(plan.item_of_scale_piece.size() + static_cast<std::size_t>(scale_pieces), index);
    plan.tiles += scale_extent(slice.encoding, slice.matrix).elements();
    plan.items.push_back(item);
  }
  return plan;
}

}  // namespace tessera::quant
