// How the kernels of operands divide a bf16 matrix among threads. A thread holds a patch: 16 adjacent rows of 8
// columns. A tile of 16 rows and the 16-point transform therefore stay in one thread. A warp holds 32 rows of 128
// columns, and its first 16 lanes hold the first 16 rows. A block holds 32 rows of 512 columns.
#pragma once
#include "tessera/quant/cuda/vectors.cuh"
#include "tessera/quant/formats/hadamard.h"

namespace tessera::quant::cuda {

inline constexpr int kPatchRows = 16, kPatchWords = kVector / 2;
inline constexpr int kPatchThreads = 128;
inline constexpr std::int64_t kPatchBlockRows = 32, kPatchBlockCols = 512;
static_assert(kPatchRows == kHadamard);

// Each word holds two adjacent elements of a row.
using Patch = std::uint32_t[kPatchRows][kPatchWords];

inline unsigned patch_blocks(Extent matrix) {
  return checked_blocks(pieces_of(matrix.rows, kPatchBlockRows) * pieces_of(matrix.cols, kPatchBlockCols));
}

// Returns the position of the first element of this thread's patch.
__device__ inline Place patch_place(Extent matrix) {
  const auto across = static_cast<unsigned>(pieces_of(matrix.cols, kPatchBlockCols));
  const unsigned down = blockIdx.x / across, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  return {.row = down * kPatchBlockRows + lane / 16 * kPatchRows,
          .col = (blockIdx.x - down * across) * kPatchBlockCols + (warp * 16 + lane % 16) * kVector};
}

// Loads a patch; elements outside the matrix are 0. If kVectors is true, rows begin at multiples of 16 bytes.
template <bool kVectors>
__device__ void load_patch(const bfloat16* source, Extent matrix, const Place& place, Patch& patch) {
  const std::int64_t rest = matrix.cols - place.col;
  const bfloat16* from = source + place.row * matrix.cols + place.col;
#pragma unroll
  for (int r = 0; r < kPatchRows; ++r) {
    uint4 words = {0, 0, 0, 0};
    if (place.row + r < matrix.rows && rest > 0)
      words = kVectors ? __ldg(reinterpret_cast<const uint4*>(from)) : load_part(from, rest);
    patch[r][0] = words.x, patch[r][1] = words.y, patch[r][2] = words.z, patch[r][3] = words.w;
    from += matrix.cols;
  }
}

// Transforms the columns of a patch, as transform_columns does.
__device__ inline void transform_patch(Patch& patch) {
#pragma unroll
  for (int w = 0; w < kPatchWords; ++w) {
    float low[kHadamard], high[kHadamard];
#pragma unroll
    for (int r = 0; r < kPatchRows; ++r) low[r] = low_half(patch[r][w]), high[r] = high_half(patch[r][w]);
    hadamard_sums(low);
    hadamard_sums(high);
#pragma unroll
    for (int r = 0; r < kPatchRows; ++r) patch[r][w] = round_pair(low[r] * kHadamardFactor, high[r] * kHadamardFactor);
  }
}

// Returns the greatest magnitude of the transformed columns of a patch. NaNs are ignored.
__device__ inline float greatest_of_transformed(const Patch& patch) {
  float greatest = 0;
#pragma unroll
  for (int c = 0; c < kVector; ++c) {
    float sums[kHadamard];
#pragma unroll
    for (int r = 0; r < kPatchRows; ++r) sums[r] = c % 2 == 0 ? low_half(patch[r][c / 2]) : high_half(patch[r][c / 2]);
    hadamard_sums(sums);
#pragma unroll
    for (int r = 0; r < kPatchRows; ++r) greatest = fmaxf(greatest, fabsf(sums[r]));
  }
  return rounded_to_bfloat16(greatest * kHadamardFactor);
}

}  // namespace tessera::quant::cuda
