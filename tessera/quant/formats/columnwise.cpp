#include "tessera/quant/formats/columnwise.h"

#include "tessera/base/error.h"

namespace tessera::quant {

std::int64_t ColumnwiseLayout::scales_offset() const {
  constexpr std::int64_t kAlignment = 256;
  return (matrices * codes.elements() + kAlignment - 1) / kAlignment * kAlignment;
}

std::int64_t ColumnwiseLayout::bytes() const {
  return scales_offset() + matrices * scales.elements() * static_cast<std::int64_t>(sizeof(float));
}

Quantized ColumnwiseLayout::at(std::byte* memory) const {
  return {.data = reinterpret_cast<std::uint8_t*>(memory), .scales = memory + scales_offset(), .tensor_amax = nullptr};
}

ColumnwiseLayout columnwise_layout(const Encoding& encoding, Extent matrix, std::int64_t matrices) {
  TESSERA_CHECK(encoding.scale == Scale::fp32 && encoding.tile.rows == encoding.tile.cols,
                "columnwise copies: tiles of {} x {}, expected squares with fp32 scales", encoding.tile.rows,
                encoding.tile.cols);
  const Extent across{.rows = matrix.cols, .cols = matrix.rows};
  Extent scales = scale_extent(encoding, across);
  if (encoding.tile.cols > 0) scales.cols = scale_stride(across.cols);
  return {.codes = padded_codes(across), .scales = scales, .matrices = matrices};
}

Transposition columnwise_copy(const Quantized& source, Extent matrix, const Encoding& encoding, std::byte* memory,
                              std::int64_t matrices) {
  const ColumnwiseLayout layout = columnwise_layout(encoding, matrix, matrices);
  return {.source = source,
          .matrix = matrix,
          .encoding = encoding,
          .target = layout.at(memory),
          .padded = layout.codes,
          .scale_cols = layout.scales.cols,
          .matrices = matrices};
}

}  // namespace tessera::quant
