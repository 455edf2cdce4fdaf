// A tile of bytes in shared memory, through which matrices of 8-bit elements are transposed: written in words of four
// elements of one row, read in runs of 16.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "tessera/quant/cuda/vector_codes.h"

namespace tessera::quant::cuda {

inline constexpr int kTileBytes = 128;  // of a row: a line of the cache
inline constexpr int kTileWords = kTileBytes / 4, kTileRuns = kTileBytes / 16;

// kRows: of the transposed matrix. Runs of 16 bytes are exchanged within a row, differently from 16 rows to 16 rows, so
// that the lanes of a warp, which write rows 8 or 16 apart and read neighbouring runs, take different banks.
template <int kRows>
class ByteTile {
 public:
  __device__ void store(int row, int word, std::uint32_t value) { words_[row][word ^ mask(row)] = value; }
  __device__ uint4 run(int row, int run) const {
    return *reinterpret_cast<const uint4*>(&words_[row][run * 4 ^ mask(row)]);
  }

 private:
  __device__ static int mask(int row) { return row / 16 % kTileRuns * 4; }

  alignas(16) std::uint32_t words_[kRows][kTileWords];
};

// Writes a tile, whose first row and byte have these places, to a matrix of `rows` rows of `row_bytes` bytes. kWide:
// rows and the matrix begin at multiples of 16. Every thread of the block calls it, behind a barrier.
template <int kRows, int kThreads, bool kWide>
__device__ void store_tile(const ByteTile<kRows>& tile, std::uint8_t* to, std::int64_t first_row,
                           std::int64_t first_byte, std::int64_t rows, std::int64_t row_bytes) {
#pragma unroll
  for (int i = 0; i < kRows * kTileRuns / kThreads; ++i) {
    const int number = i * kThreads + static_cast<int>(threadIdx.x);
    const std::int64_t row = first_row + number / kTileRuns, byte = first_byte + number % kTileRuns * 16;
    if (row >= rows || byte >= row_bytes) continue;
    const uint4 run = tile.run(number / kTileRuns, number % kTileRuns);
    std::uint8_t* target = to + row * row_bytes + byte;
    if constexpr (kWide) {
      *reinterpret_cast<uint4*>(target) = run;
    } else {
      const std::uint32_t words[4] = {run.x, run.y, run.z, run.w};
#pragma unroll
      for (int b = 0; b < 16; ++b)
        if (byte + b < row_bytes) target[b] = static_cast<std::uint8_t>(words[b / 4] >> (8 * (b % 4)));
    }
  }
}

// 128 x 128 elements of a matrix, held by the 256 threads of a block: a thread has kParts times four neighbouring rows
// of kVector columns.
struct SquarePlace {
  static constexpr int kSide = 128, kThreads = 256, kParts = 2, kRows = 4;

  // The first of the rows of part `part`, and the first column, within the square.
  __device__ static int row(int part) { return (part * (kThreads / 16) + static_cast<int>(threadIdx.x) / 16) * kRows; }
  __device__ static int col() { return static_cast<int>(threadIdx.x) % 16 * 8; }
};

// Puts the codes of kRows rows of a part, two words a row, into the tile of the transposed matrix.
__device__ inline void store_transposed(ByteTile<SquarePlace::kSide>& tile, int part,
                                        const std::uint32_t (&codes)[SquarePlace::kRows][2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t words[4] = {codes[0][half], codes[1][half], codes[2][half], codes[3][half]};
    transpose_bytes(words);
#pragma unroll
    for (int i = 0; i < 4; ++i) tile.store(SquarePlace::col() + half * 4 + i, SquarePlace::row(part) / 4, words[i]);
  }
}

}  // namespace tessera::quant::cuda
