// How the kernels that decode matrices of experts divide a strip (strips.cuh) among threads, and the recipe of nvfp4 on
// such a part.
//
// A strip has at least the rows of a tile. A thread block processes kChunks chunks of the strip's columns, one after
// the other. A thread holds some rows of two adjacent columns of a chunk.
#pragma once
#include "tessera/ops/grouped/strips.cuh"
#include "tessera/quant/formats/hadamard.h"

namespace tessera::ops::cuda {

inline constexpr int kThreads = 256, kChunkCols = 128, kPairs = kChunkCols / 2, kRowsAtOnce = kThreads / kPairs,
                     kChunks = 4;
inline constexpr int kStripRows = 16;  // rows of a strip unless a tile has more

// Two adjacent columns of a thread, and the rows of a strip that the thread holds.
template <int kRows>
struct Columns {
  static constexpr int kOwn = kRows / kRowsAtOnce;
  std::uint32_t words[kOwn];  // two bf16 numbers each; 0 outside of the matrix

  __device__ static int row(int i) { return static_cast<int>(threadIdx.x) / kPairs + i * kRowsAtOnce; }
  __device__ static int pair() { return static_cast<int>(threadIdx.x) % kPairs; }

  __device__ void load(const StackedRows& source, const Strip& strip, std::int64_t col, bool pairs) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      words[i] = 0;
      if (row(i) >= strip.rows || col >= source.cols) continue;
      const quant::bfloat16* from = source.values + (strip.row + row(i)) * source.cols + col;
      if (pairs) {
        words[i] = __ldg(reinterpret_cast<const std::uint32_t*>(from));
      } else {
        words[i] = from[0].bits;
        if (col + 1 < source.cols) words[i] |= static_cast<std::uint32_t>(from[1].bits) << 16;
      }
    }
  }
};

__device__ inline void store(quant::bfloat16* to, std::uint32_t word, std::int64_t rest, bool pairs) {
  if (pairs) {
    *reinterpret_cast<std::uint32_t*>(to) = word;
    return;
  }
  to[0].bits = static_cast<std::uint16_t>(word);
  if (rest > 1) to[1].bits = static_cast<std::uint16_t>(word >> 16);
}

using SharedChunk = std::uint16_t[kStripRows][kChunkCols];

// Transforms the rows of a strip. Each thread writes and later reads its own elements of `shared`. Between these
// accesses, a thread transforms a whole column. Every thread of the block calls this function.
__device__ inline void transform(Columns<kStripRows>& columns, SharedChunk& shared) {
  static_assert(kStripRows == quant::kHadamard && kChunkCols <= kThreads);
  using Own = Columns<kStripRows>;
  const auto own = [&](int i) { return reinterpret_cast<std::uint32_t*>(&shared[Own::row(i)][2 * Own::pair()]); };
#pragma unroll
  for (int i = 0; i < Own::kOwn; ++i) *own(i) = columns.words[i];
  __syncthreads();
  if (threadIdx.x < kChunkCols) {
    float values[kStripRows];
#pragma unroll
    for (int row = 0; row < kStripRows; ++row)
      values[row] = __uint_as_float(std::uint32_t{shared[row][threadIdx.x]} << 16);
    quant::hadamard_sums(values);
#pragma unroll
    for (int row = 0; row < kStripRows; ++row)
      shared[row][threadIdx.x] =
          static_cast<std::uint16_t>(quant::round_pair(values[row] * quant::kHadamardFactor, 0) & 0xFFFF);
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < Own::kOwn; ++i) columns.words[i] = *own(i);
}

// The random bits of a strip's elements. Four adjacent lanes hold eight adjacent columns of the same four rows. Each of
// them computes the words of one row.
class RandomBits {
 public:
  __device__ RandomBits(const GroupedCast& cast, const Strip& strip)
      : rounding_(cast.rounding.of(strip.matrix / cast.per_expert)),
        step_(static_cast<std::uint32_t>(*cast.rounding.step)),
        side_(cast.encoding.tile.cols == 1 ? quant::RoundingSide::columns : quant::RoundingSide::rows) {
    const int row = Columns<kStripRows>::row(static_cast<int>(threadIdx.x % kLanes));
    token_ = strip.first + row;
    if (cast.row_tokens != nullptr) token_ = row < strip.rows ? cast.row_tokens[strip.row + row] : 0;
  }
  // Finds the bits for the thread's columns, which begin at `col`. Every thread of the block calls this function.
  __device__ void find(std::int64_t col) {
    const base::PhiloxCounter own =
        rounding_words(rounding_, step_, token_, static_cast<std::uint32_t>(col / quant::kRoundedColumns), side_);
#pragma unroll
    for (int i = 0; i < kLanes; ++i) words_[i] = own[i];
    swap_words(0, 1), swap_words(2, 3);
    swap_words(0, 2), swap_words(1, 3);
  }
  // Returns the bits of the thread's column `side` (0 or 1) in its row `i`.
  __device__ std::uint32_t of(int i, int side) const {
    return words_[i] >> (16 * side) & 0xFFFF;
  }

 private:
  static constexpr int kLanes = quant::kRoundedColumns / 2;
  static_assert(kLanes == Columns<kStripRows>::kOwn && kWarp % kLanes == 0 && kPairs % kLanes == 0);

  // A part of the transposition of four words over four lanes: exchanges word `high` of a lane whose number lacks the
  // bit high - low with word `low` of the lane whose number has it.
  __device__ void swap_words(int low, int high) {
    const unsigned distance = static_cast<unsigned>(high - low);
    const bool has_bit = (threadIdx.x & distance) != 0;
    const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFFU, has_bit ? words_[low] : words_[high], distance);
    (has_bit ? words_[low] : words_[high]) = other;
  }

  const quant::StochasticRounding rounding_;
  const std::uint32_t step_;
  const quant::RoundingSide side_;
  std::int64_t token_ = 0;
  std::uint32_t words_[kLanes] = {};  // of find(): word i belongs to the two columns in row i
};
// Values are rounded to nearest even.
struct NoRandomBits {
  __device__ NoRandomBits(const GroupedCast& /*cast*/, const Strip& /*strip*/) {}
  __device__ void find(std::int64_t /*col*/) {}
  __device__ std::uint32_t of(int /*i*/, int /*side*/) const { return 0; }
};

}  // namespace tessera::ops::cuda
