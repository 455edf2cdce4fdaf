// The columnwise copy of a weight: the transposed codes and scales of a quantized matrix, with the padding that native
// products read. Each matrix of a stack is transposed alone. Products that sum over the rows of the weight (dgrad)
// multiply this copy.
#pragma once
#include <cstddef>
#include <cstdint>

#include "tessera/quant/formats/quantize.h"

namespace tessera::quant {

inline constexpr std::int64_t kBlockCast = 128;  // number of elements that share a scale
// Returns the number of scales from one row of squares to the next. `elements` is the number of elements in a row of
// the matrix. Products read the scales of squares with this stride.
constexpr std::int64_t scale_stride(std::int64_t elements) {
  return (elements + 4 * kBlockCast - 1) / (4 * kBlockCast) * 4;
}

// Returns the extent of the codes that native products read: both sides are multiples of 16.
constexpr Extent padded_codes(Extent matrix) {
  constexpr std::int64_t kSide = 16;
  return {.rows = (matrix.rows + kSide - 1) / kSide * kSide, .cols = (matrix.cols + kSide - 1) / kSide * kSide};
}

// The memory of a columnwise copy. It holds the codes, then the fp32 scales at a multiple of 256 bytes.
struct ColumnwiseLayout {
  Extent codes, scales;  // of one matrix
  std::int64_t matrices = 1;

  std::int64_t scales_offset() const;
  std::int64_t bytes() const;
  Quantized at(std::byte* memory) const;
};

// Returns the layout of the copy of a stack of matrices. Products of the encoding are native: its scales are fp32, one
// for the whole matrix or one for each square of elements. Throws Error for another encoding.
ColumnwiseLayout columnwise_layout(const Encoding& encoding, Extent matrix, std::int64_t matrices = 1);
// Returns how to write the copy of a stack of matrices to `memory`, which has the bytes of the layout.
Transposition columnwise_copy(const Quantized& source, Extent matrix, const Encoding& encoding, std::byte* memory,
                              std::int64_t matrices = 1);

}  // namespace tessera::quant
