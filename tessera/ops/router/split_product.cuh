// Products of fp32 matrices on tensor cores. An fp32 number is the sum of three bf16 numbers (its planes), which hold 8
// bits of its significand each. A product of two numbers is the sum of the products of their planes, and each of these
// products is exact in fp32. Products below 2^-24 of the greatest are left out.
//
// The inner dimension is divided into runs of kRun elements. A run has two sums that start from 0: of the products of
// the first planes, and of the other products, which are small. Their sum is added to the result in fp32, rounded to
// nearest. Tensor cores truncate the sums of a run; without runs, the error would grow with the length of the inner
// dimension. The order depends only on the position in the inner dimension, so the bits of a row do not depend on other
// rows.
#pragma once
#include <algorithm>
#include <cstdint>

#include "tessera/base/host_device.h"
#include "tessera/ops/packs.cuh"

namespace tessera::ops::cuda {

inline constexpr int kRun = 64;
inline constexpr int kChunk = 8;  // elements of a copy of 16 bytes

// The planes of a matrix, in bf16: [planes, rows, stride]. Columns from the matrix's own number of columns to `stride`
// are 0. `stride` is a multiple of kChunk, and the memory is aligned to 16 bytes.
struct Planes {
  const std::uint16_t* data = nullptr;
  std::int64_t rows = 0, stride = 0;
};

// Which planes of the left matrix and of the right matrix are multiplied, in this order.
struct PlanePair {
  int left = 0, right = 0;
  TESSERA_HOST_DEVICE constexpr bool is_small() const { return left + right > 0; }
};
struct FloatByBfloat16 {
  static constexpr int kLeft = 3, kRight = 1, kPairs = 3;
  TESSERA_HOST_DEVICE static constexpr PlanePair pair(int i) { return {2 - i, 0}; }
};
struct Bfloat16ByFloat {
  static constexpr int kLeft = 1, kRight = 3, kPairs = 3;
  TESSERA_HOST_DEVICE static constexpr PlanePair pair(int i) { return {0, 2 - i}; }
};
struct FloatByFloat {
  static constexpr int kLeft = 3, kRight = 3, kPairs = 6;
  TESSERA_HOST_DEVICE static constexpr PlanePair pair(int i) {
    constexpr PlanePair kAll[] = {{1, 1}, {0, 2}, {2, 0}, {0, 1}, {1, 0}, {0, 0}};
    return kAll[i];
  }
};

// A block computes kRows x kCols elements, and a warp kWarpRows x kWarpCols. kLeftByInner: the left matrix is
// stored with the inner dimension as rows, otherwise as columns; kRightByInner: in the same way for the right matrix. A
// block has the tiles of kStages runs in shared memory.
template <int kRowsOfBlock, int kColsOfBlock, int kRowsOfWarp, int kColsOfWarp, bool kLeftIsByInner,
          bool kRightIsByInner, int kStagesOfBlock>
struct SplitTile {
  static constexpr int kRows = kRowsOfBlock, kCols = kColsOfBlock, kWarpRows = kRowsOfWarp, kWarpCols = kColsOfWarp;
  static constexpr bool kLeftByInner = kLeftIsByInner, kRightByInner = kRightIsByInner;
  static constexpr int kStages = kStagesOfBlock;
  static constexpr int kWarps = kRows / kWarpRows * (kCols / kWarpCols), kThreads = kWarps * kWarp;
  template <typename Product>
  static constexpr int kStageElements = (Product::kLeft * kRows + Product::kRight * kCols) * kRun;
  template <typename Product>
  static constexpr int kBytes = std::max(kStages* kStageElements<Product> * 2, kRows*(kCols + kChunk) * 4);
};

// The address of a chunk of a tile in shared memory. A row has kRowChunks chunks. Chunks of neighbouring rows use
// other banks.
template <int kRowChunks>
__device__ __forceinline__ int chunk_index(int row, int chunk) {
  constexpr int kSwizzled = kRowChunks < 8 ? kRowChunks : 8, kShift = kSwizzled == 8 ? 0 : kSwizzled == 4 ? 1 : 2;
  static_assert(kSwizzled == 8 || kSwizzled == 4 || kSwizzled == 2);
  return row * kRowChunks + (chunk ^ ((row >> kShift) & (kSwizzled - 1)));
}

// Starts the copy of a tile of all planes. kOuter: elements of the tile in the outer dimension. The tile begins at
// `outer` and at `inner`. Elements outside the matrix, and from `inner_end` on, are 0.
template <int kPlanes, int kOuter, bool kByInner, int kThreads>
__device__ __forceinline__ void copy_tile(const Planes& from, std::int64_t outer, std::int64_t inner,
                                          std::int64_t inner_end, std::uint16_t* to) {
  constexpr int kTileRows = kByInner ? kRun : kOuter, kRowChunks = (kByInner ? kOuter : kRun) / kChunk;
  const std::int64_t first_row = kByInner ? inner : outer, first_col = kByInner ? outer : inner;
  const std::int64_t rows = kByInner ? min(inner_end, from.rows) : from.rows;
  const std::int64_t cols = kByInner ? from.stride : min(inner_end + (kChunk - 1), from.stride);
#pragma unroll
  for (int plane = 0; plane < kPlanes; ++plane) {
    const std::uint16_t* const matrix = from.data + plane * from.rows * from.stride;
    for (int i = static_cast<int>(threadIdx.x); i < kTileRows * kRowChunks; i += kThreads) {
      const int row = i / kRowChunks, chunk = i % kRowChunks;
      const std::int64_t at_row = first_row + row, at_col = first_col + chunk * kChunk;
      const bool exists = at_row < rows && at_col + kChunk <= cols;
      const void* source = exists ? matrix + at_row * from.stride + at_col : matrix;
      const auto target = static_cast<std::uint32_t>(__cvta_generic_to_shared(
          to + (plane * kTileRows * kRowChunks + chunk_index<kRowChunks>(row, chunk)) * kChunk));
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(exists ? 16 : 0));
    }
  }
}

// Loads four 8 x 8 matrices from a tile. Each lane gives the address of a row of 8 elements.
template <bool kTransposed>
__device__ __forceinline__ void load_matrices(const std::uint16_t* row, std::uint32_t (&values)[4]) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
                 : "r"(address)
                 : "memory");
}

// Loads a 16 x 16 part of the left matrix as an operand of mma.m16n8k16.
template <int kOuter, bool kByInner>
__device__ __forceinline__ void load_left(const std::uint16_t* tile, int row, int inner, std::uint32_t (&values)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if constexpr (kByInner)
    load_matrices<true>(
        tile + chunk_index<kOuter / kChunk>(inner + lane / 16 * 8 + lane % 8, row / kChunk + lane / 8 % 2) * kChunk,
        values);
  else
    load_matrices<false>(tile + chunk_index<kRun / kChunk>(row + lane % 16, inner / kChunk + lane / 16) * kChunk,
                         values);
}
// Loads a 16 x 16 part of the right matrix as two operands of mma.m16n8k16: values 0 and 1 belong to the first 8
// columns, and values 2 and 3 to the others.
template <int kOuter, bool kByInner>
__device__ __forceinline__ void load_right(const std::uint16_t* tile, int col, int inner, std::uint32_t (&values)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  if constexpr (kByInner)
    load_matrices<true>(
        tile + chunk_index<kOuter / kChunk>(inner + lane / 8 % 2 * 8 + lane % 8, col / kChunk + lane / 16) * kChunk,
        values);
  else
    load_matrices<false>(
        tile + chunk_index<kRun / kChunk>(col + lane / 16 * 8 + lane % 8, inner / kChunk + lane / 8 % 2) * kChunk,
        values);
}

__device__ __forceinline__ void multiply_add(float (&sum)[4], const std::uint32_t (&left)[4], std::uint32_t right_low,
                                             std::uint32_t right_high) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right_low), "r"(right_high));
}

// The sums of a warp.
template <typename Tile>
struct WarpSums {
  static constexpr int kDown = Tile::kWarpRows / 16, kAcross = Tile::kWarpCols / 16;
  float values[kDown][2 * kAcross][4] = {};

  // Adds a run, whose tiles are in shared memory. `count`: elements of the run.
  template <typename Product>
  __device__ __forceinline__ void add_run(const std::uint16_t* left, const std::uint16_t* right, int row, int col,
                                          int count) {
    float run[kDown][2 * kAcross][4] = {}, small[kDown][2 * kAcross][4] = {};
#pragma unroll
    for (int inner = 0; inner < kRun; inner += 16) {
      if (inner >= count) break;
      std::uint32_t down[Product::kLeft][kDown][4];
#pragma unroll
      for (int plane = 0; plane < Product::kLeft; ++plane)
#pragma unroll
        for (int i = 0; i < kDown; ++i)
          load_left<Tile::kRows, Tile::kLeftByInner>(left + plane * Tile::kRows * kRun, row + i * 16, inner,
                                                     down[plane][i]);
#pragma unroll
      for (int k = 0; k < kAcross; ++k) {
        std::uint32_t across[Product::kRight][4];
#pragma unroll
        for (int plane = 0; plane < Product::kRight; ++plane)
          load_right<Tile::kCols, Tile::kRightByInner>(right + plane * Tile::kCols * kRun, col + k * 16, inner,
                                                       across[plane]);
#pragma unroll
        for (int p = 0; p < Product::kPairs; ++p) {
          const PlanePair pair = Product::pair(p);
#pragma unroll
          for (int i = 0; i < kDown; ++i) {
            auto& sums = pair.is_small() ? small : run;
            multiply_add(sums[i][2 * k], down[pair.left][i], across[pair.right][0], across[pair.right][1]);
            multiply_add(sums[i][2 * k + 1], down[pair.left][i], across[pair.right][2], across[pair.right][3]);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kDown; ++i)
#pragma unroll
      for (int k = 0; k < 2 * kAcross; ++k)
#pragma unroll
        for (int n = 0; n < 4; ++n) values[i][k][n] += small[i][k][n] + run[i][k][n];
  }
};

// Writes the sums of a block through shared memory, so that memory is accessed by packs of a row.
template <typename Tile, typename Write>
__device__ __forceinline__ void write_sums(const WarpSums<Tile>& sums, int warp_row, int warp_col, float* tile,
                                           std::int64_t rows, std::int64_t cols, const Write& write) {
  constexpr int kStride = Tile::kCols + kChunk;  // rows of a fragment begin in other banks
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int i = 0; i < WarpSums<Tile>::kDown; ++i)
#pragma unroll
    for (int k = 0; k < 2 * WarpSums<Tile>::kAcross; ++k)
#pragma unroll
      for (int n = 0; n < 4; n += 2)
        *reinterpret_cast<float2*>(tile + (warp_row + i * 16 + lane / 4 + n / 2 * 8) * kStride + warp_col + k * 8 +
                                   lane % 4 * 2) = float2{sums.values[i][k][n], sums.values[i][k][n + 1]};
  __syncthreads();
  constexpr int kRowChunks = Tile::kCols / kChunk, kAhead = 4;
  constexpr int kChunks = Tile::kRows * kRowChunks;
  const std::int64_t first_row = std::int64_t{blockIdx.x} * Tile::kRows,
                     first_col = std::int64_t{blockIdx.y} * Tile::kCols;
  for (int first = static_cast<int>(threadIdx.x); first < kChunks; first += kAhead * Tile::kThreads) {
    typename Write::Addend addends[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = first + i * Tile::kThreads;
      const std::int64_t row = first_row + at / kRowChunks, col = first_col + at % kRowChunks * kChunk;
      if (at < kChunks && row < rows && col < cols) addends[i] = write.addend(row, col, cols);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = first + i * Tile::kThreads;
      const std::int64_t row = first_row + at / kRowChunks, col = first_col + at % kRowChunks * kChunk;
      if (at < kChunks && row < rows && col < cols)
        write(row, col, cols, tile + at / kRowChunks * kStride + at % kRowChunks * kChunk, addends[i]);
    }
  }
}

// Computes the tile (blockIdx.x, blockIdx.y) of left x right over the elements [inner_begin, inner_end) of the inner
// dimension. `write` gets packs of at most kChunk elements of a row: write(row, col, cols, sums, addend), with `addend`
// from write.addend(row, col, cols). All threads of the block take part.
template <typename Product, typename Tile, typename Write>
__device__ __forceinline__ void split_product(const Planes& left, const Planes& right, std::int64_t rows,
                                              std::int64_t cols, std::int64_t inner_begin, std::int64_t inner_end,
                                              const Write& write) {
  extern __shared__ __align__(16) std::uint16_t tiles[];
  constexpr int kStage = Tile::template kStageElements<Product>;
  constexpr int kRightOffset = Product::kLeft * Tile::kRows * kRun;
  const std::int64_t first_row = std::int64_t{blockIdx.x} * Tile::kRows;
  const std::int64_t first_col = std::int64_t{blockIdx.y} * Tile::kCols;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  constexpr int kWarpsAcross = Tile::kCols / Tile::kWarpCols;
  const int warp_row = warp / kWarpsAcross * Tile::kWarpRows, warp_col = warp % kWarpsAcross * Tile::kWarpCols;
  const auto copy = [&](std::int64_t run, int stage) {
    const std::int64_t inner = inner_begin + run * kRun;
    std::uint16_t* const to = tiles + stage * kStage;
    if (inner < inner_end) {
      copy_tile<Product::kLeft, Tile::kRows, Tile::kLeftByInner, Tile::kThreads>(left, first_row, inner, inner_end, to);
      copy_tile<Product::kRight, Tile::kCols, Tile::kRightByInner, Tile::kThreads>(right, first_col, inner, inner_end,
                                                                                   to + kRightOffset);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  const std::int64_t runs = (inner_end - inner_begin + kRun - 1) / kRun;
  WarpSums<Tile> sums;
  for (int stage = 0; stage + 1 < Tile::kStages; ++stage) copy(stage, stage);
  for (std::int64_t run = 0; run < runs; ++run) {
    copy(run + Tile::kStages - 1, static_cast<int>((run + Tile::kStages - 1) % Tile::kStages));
    asm volatile("cp.async.wait_group %0;" ::"n"(Tile::kStages - 1) : "memory");
    __syncthreads();
    const std::uint16_t* const stage = tiles + run % Tile::kStages * kStage;
    const std::int64_t rest = inner_end - inner_begin - run * kRun;
    sums.template add_run<Product>(stage, stage + kRightOffset, warp_row, warp_col,
                                   static_cast<int>(rest < kRun ? rest : std::int64_t{kRun}));
    __syncthreads();
  }
  write_sums(sums, warp_row, warp_col, reinterpret_cast<float*>(tiles), rows, cols, write);
}

}  // namespace tessera::ops::cuda
