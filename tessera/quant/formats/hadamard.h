// The 16-point Hadamard transform of the operands of wgrad in nvfp4 (Pretraining Large Language Models with NVFP4,
// arXiv 2509.25149). wgrad sums over tokens. Both operands are multiplied along the tokens by the same orthogonal
// matrix, so the product does not change, but large values are distributed over 16 elements before they are quantized.
//
//   x' = x diag(s) H / 4
//
// x is 16 adjacent tokens of one column, H is Sylvester's matrix, H[i][j] = (-1)^popcount(i & j), and the signs s are
// + + + - + - - - - - - + - + - -.
#pragma once
#include <cstdint>

#include "tessera/base/host_device.h"
#include "tessera/quant/bfloat16.h"
#include "tessera/quant/formats/quantize.h"

namespace tessera::quant {

inline constexpr int kHadamard = 16;                     // number of tokens that are transformed together
inline constexpr std::uint32_t kHadamardSigns = 0xD7E8;  // bit i is set if s[i] is -

// Computes 4 x' without rounding to bf16. The sums are fp32, in four stages: stage d = 1, 2, 4, 8 replaces
// (a, b) = (x[i], x[i + d]) by (a + b, a - b) for every i without bit d.
TESSERA_HOST_DEVICE inline void hadamard_sums(float (&x)[kHadamard]) {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int i = 0; i < kHadamard; ++i) x[i] = (kHadamardSigns >> i & 1) != 0 ? -x[i] : x[i];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
  for (int distance = 1; distance < kHadamard; distance *= 2) {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int i = 0; i < kHadamard; ++i) {
      if ((i & distance) != 0) continue;
      const float a = x[i], b = x[i + distance];
      x[i] = a + b;
      x[i + distance] = a - b;
    }
  }
}
inline constexpr float kHadamardFactor = 0.25F;  // x' is this factor times the sums

// Returns the extent of a transformed matrix: the rows are rounded up to a multiple of 16.
constexpr Extent transformed_extent(Extent matrix) {
  matrix.rows = (matrix.rows + kHadamard - 1) / kHadamard * kHadamard;
  return matrix;
}

// Transforms the columns of a bf16 matrix [tokens, columns] in groups of 16 rows, from the first row. Rows of zeros are
// added to the last group. Results are rounded to bf16. `target` has the transformed_extent and does not overlap the
// source.
void transform_columns(const bfloat16* source, Extent matrix, bfloat16* target);

}  // namespace tessera::quant
