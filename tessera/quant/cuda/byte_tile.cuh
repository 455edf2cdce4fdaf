// A tile of bytes in shared memory for transposing matrices of 8-bit elements. A thread writes one word at a time, with
// four elements of a row. A thread reads 16 bytes (a run) at a time.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>

#include "tessera/quant/cuda/vector_codes.h"

namespace tessera::quant::cuda {

inline constexpr int kTileBytes = 128;  // bytes of a row: one cache line
inline constexpr int kTileWords = kTileBytes / 4, kTileRuns = kTileBytes / 16;

// kRows is the number of rows of the transposed tile. Within a row, the runs of 16 bytes are permuted, and each group
// of 16 rows has its own permutation. This avoids bank conflicts, because the lanes of a warp write rows that are 8 or
// 16 apart and read adjacent runs.
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

// Writes a tile to a matrix with `rows` rows of `row_bytes` bytes. `first_row` and `first_byte` are the position of the
// tile in the matrix. Bytes of a row from `end_byte` on are not written. If kWide is true, every row must begin at a
// multiple of 16 bytes, and `end_byte` must be one. Every thread of the block calls this function, after a barrier.
template <int kRows, int kThreads, bool kWide>
__device__ void store_tile(const ByteTile<kRows>& tile, std::uint8_t* to, std::int64_t first_row,
                           std::int64_t first_byte, std::int64_t rows, std::int64_t row_bytes, std::int64_t end_byte) {
#pragma unroll
  for (int i = 0; i < kRows * kTileRuns / kThreads; ++i) {
    const int number = i * kThreads + static_cast<int>(threadIdx.x);
    const std::int64_t row = first_row + number / kTileRuns, byte = first_byte + number % kTileRuns * 16;
    if (row >= rows || byte >= end_byte) continue;
    const uint4 run = tile.run(number / kTileRuns, number % kTileRuns);
    std::uint8_t* target = to + row * row_bytes + byte;
    if constexpr (kWide) {
      *reinterpret_cast<uint4*>(target) = run;
    } else {
      const std::uint32_t words[4] = {run.x, run.y, run.z, run.w};
#pragma unroll
      for (int b = 0; b < 16; ++b)
        if (byte + b < end_byte) target[b] = static_cast<std::uint8_t>(words[b / 4] >> (8 * (b % 4)));
    }
  }
}

template <int kRows, int kThreads, bool kWide>
__device__ void store_tile(const ByteTile<kRows>& tile, std::uint8_t* to, std::int64_t first_row,
                           std::int64_t first_byte, std::int64_t rows, std::int64_t row_bytes) {
  store_tile<kRows, kThreads, kWide>(tile, to, first_row, first_byte, rows, row_bytes, row_bytes);
}

// How the 256 threads of a block divide a square of 128 x 128 elements. Each thread holds kParts parts. A part is four
// adjacent rows of kVector columns.
struct SquarePlace {
  static constexpr int kSide = 128, kThreads = 256, kParts = 2, kRows = 4;

  // Return the first row of part `part` of this thread, and the first column of the thread's parts, within the square.
  __device__ static int row(int part) { return (part * (kThreads / 16) + static_cast<int>(threadIdx.x) / 16) * kRows; }
  __device__ static int col() { return static_cast<int>(threadIdx.x) % 16 * 8; }
};

// Stores the codes of a part (two words for each of its kRows rows) in the tile of the transposed matrix.
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
