// Arguments of the quantization kernels on a GPU, which cuda_table.h lists. Pointers are memory of the current device.
// The numbers are those of quantize.h, byte for byte; where a value is NaN, some NaN.
#pragma once
#include <cstdint>

#include "tessera/quant/formats/quantize.h"

namespace tessera::quant {

// A weight that is unpacked to bf16, as dequantize() of quantize.h does.
struct Dequantization {
  Quantized source;
  Extent matrix;
  Encoding encoding;
  bfloat16* target = nullptr;
};

// A matrix whose amax is taken. *amax holds one already, 0 at first; the greater one stays.
struct AmaxTask {
  Source source;
  std::int64_t elements = 0;
  float* amax = nullptr;
};

// A bf16 matrix, multiplied by one number and rounded to fp8. Rows and columns from the matrix's end to the end of
// `padded` are written with zeros. `padded`: at least `matrix`, multiples of 16.
struct Fp8Cast {
  const bfloat16* source = nullptr;
  Extent matrix, padded;
  Element element = Element::e4m3;
  const float* multiplier = nullptr;
  std::uint8_t* rowwise = nullptr;     // [padded.rows, padded.cols]; null: not written
  std::uint8_t* columnwise = nullptr;  // transposed, [padded.cols, padded.rows]; null: not written
  float* amax = nullptr;               // as AmaxTask has it; null: not taken
};

// A bf16 matrix in blocks of 128 elements that share an fp32 scale, E4M3 or E5M2. The scales of a matrix lie with its
// rows side by side: that of row r and block b at scales[b * padded rows + r]. Rows of padding have the scale 1.
struct BlockCast {
  const bfloat16* source = nullptr;
  Extent matrix, padded;
  Element element = Element::e4m3;
  bool powers_of_two = true;
  // Weights: all of a square of 128 x 128 elements share a scale. That of the square in row r and column c of squares
  // lies at rowwise_scales[r * scale_stride(cols) + c] and columnwise_scales[c * scale_stride(rows) + r]; what is
  // behind the last of a row is not written.
  bool squares = false;
  // Blocks along the rows.
  std::uint8_t* rowwise = nullptr;  // [padded.rows, padded.cols]; null: neither codes nor scales
  float* rowwise_scales = nullptr;  // [ceil(cols / 128), padded.rows]
  // Blocks along the columns: the rows of the transposed matrix.
  std::uint8_t* columnwise = nullptr;  // [padded.cols, padded.rows]; null: neither codes nor scales
  float* columnwise_scales = nullptr;  // [ceil(rows / 128), padded.cols]
};

inline constexpr std::int64_t kBlockCast = 128;  // elements that share a scale
// Scales from one row of squares to the next, where squares of 128 x 128 elements share them: as products read them.
constexpr std::int64_t scale_stride(std::int64_t elements) {
  return (elements + 4 * kBlockCast - 1) / (4 * kBlockCast) * 4;
}

// A quantized weight that is transposed, as transpose() of quantize.h does. `padded`: the extent of the target's codes
// where that is more than [matrix.cols, matrix.rows]; what is behind the matrix becomes 0.
struct Transposition {
  Quantized source;
  Extent matrix;
  Encoding encoding;
  Quantized target;
  Extent padded;
};

}  // namespace tessera::quant
