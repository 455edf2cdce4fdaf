#include "tessera/quant/formats/swizzle.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::quant {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Returns true if products sum over the rows.
bool blocks_are_rows(const Encoding& encoding) {
  return encoding.tile.cols == 1;
}

}  // namespace

Extent padded_scale_extent(const Encoding& encoding, Extent matrix) {
  const ScaleTile& tile = encoding.tile;
  const bool shape_known = tile.rows > 0 && tile.cols > 0 && tile.rows * tile.cols > 1 &&
                           (tile.rows == 1 || tile.cols == 1 || tile.rows == tile.cols);
  if (!shape_known || encoding.scale == Scale::fp32)
    throw Error(
        "padded scales: expected scales of one byte for tiles of 1 x B, B x 1 or B x B, got {} scales for tiles of {} "
        "x {}",
        encoding.scale == Scale::fp32 ? "fp32" : "byte", tile.rows, tile.cols);
  const Extent compact = scale_extent(encoding, matrix);
  if (blocks_are_rows(encoding)) return {.rows = round_up(compact.rows, 4), .cols = round_up(matrix.cols, 128)};
  return {.rows = round_up(matrix.rows, 128), .cols = round_up(compact.cols, 4)};
}

void pad_scales(const std::uint8_t* scales, Extent matrix, const Encoding& encoding, std::uint8_t* padded) {
  const Extent compact = scale_extent(encoding, matrix), extent = padded_scale_extent(encoding, matrix);
  const std::int64_t repeats = blocks_are_rows(encoding) ? 1 : encoding.tile.rows;
  const std::int64_t rows = blocks_are_rows(encoding) ? compact.rows : matrix.rows;
  std::fill_n(padded, extent.elements(), std::uint8_t{0});
  for (std::int64_t row = 0; row < rows; ++row)
    std::copy_n(scales + row / repeats * compact.cols, compact.cols, padded + row * extent.cols);
}

void swizzle_scales(const std::uint8_t* padded, Extent matrix, const Encoding& encoding, std::uint8_t* swizzled) {
  const Extent extent = padded_scale_extent(encoding, matrix);
  for (std::int64_t row = 0; row < extent.rows; ++row)
    for (std::int64_t col = 0; col < extent.cols; ++col) {
      const std::int64_t offset =
          blocks_are_rows(encoding) ? swizzled_offset(col, row, extent.rows) : swizzled_offset(row, col, extent.cols);
      swizzled[offset] = padded[row * extent.cols + col];
    }
}

}  // namespace tessera::quant
