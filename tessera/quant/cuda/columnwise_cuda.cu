// Transposes quantized weights in one launch: the codes and the scales, through tiles in shared memory. A weight is a
// stack of matrices. The thread blocks of its codes come before those of its scales, and those of a matrix are
// adjacent.
#include <cstring>
#include <type_traits>

#include "tessera/base/cuda_word.cuh"
#include "tessera/quant/cuda/byte_tile.cuh"
#include "tessera/quant/cuda/quantize_cuda.h"
#include "tessera/quant/cuda/weight_list.cuh"

namespace tessera::quant::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTileRows = 128;  // rows of the transposed matrix, kTileBytes each

struct Codes {
  const std::uint8_t* source;
  std::uint8_t* target;
  std::int64_t matrices;
  std::int64_t rows, row_bytes;            // extent of a matrix of the source
  std::int64_t target_rows, target_bytes;  // target_bytes: number of bytes of a row
  bool nibbles;
  bool wide_loads, wide_stores;  // whether rows begin at multiples of 16, or of 8 for loads of 4-bit elements

  __host__ __device__ std::int64_t tiles_down() const { return pieces_of(target_rows, kTileRows); }
  __host__ __device__ std::int64_t tiles() const { return tiles_down() * pieces_of(target_bytes, kTileBytes); }
};

// Loads kBytes bytes (8 or 16) of a row of a matrix. Bytes outside the matrix are 0.
template <int kBytes, bool kWide>
__device__ void load_row(const Codes& codes, std::int64_t row, std::int64_t byte, std::uint32_t (&words)[kBytes / 4]) {
#pragma unroll
  for (std::uint32_t& word : words) word = 0;
  if (row >= codes.rows || byte >= codes.row_bytes) return;
  const std::uint8_t* from = codes.source + row * codes.row_bytes + byte;
  if constexpr (kWide) {
    using Word = base::CudaWord<kBytes>;
    const Word word = *reinterpret_cast<const Word*>(from);
    std::memcpy(words, &word, kBytes);
  } else {
#pragma unroll
    for (int i = 0; i < kBytes; ++i)
      if (byte + i < codes.row_bytes) words[i / 4] |= static_cast<std::uint32_t>(from[i]) << (8 * (i % 4));
  }
}

// The part of a tile that a thread loads: kRows rows of kBytes bytes of the source. The 8 parts of a group are
// adjacent.
template <int kRows, int kBytes>
struct Share {
  std::uint32_t words[kRows][kBytes / 4];
  int group, first;  // the first row is group * kRows, the first byte is `first`
};
template <int kRows, int kBytes, bool kWide>
__device__ Share<kRows, kBytes> load_share(const Codes& codes, std::int64_t row, std::int64_t byte) {
  const int thread = static_cast<int>(threadIdx.x);
  Share<kRows, kBytes> share{.group = thread / 8, .first = thread % 8 * kBytes};
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    load_row<kBytes, kWide>(codes, row + share.group * kRows + r, byte + share.first, share.words[r]);
  return share;
}

// Fills the tile from 128 rows of 128 bytes. A thread loads four rows of 16 bytes.
template <bool kWide>
__device__ void fill_bytes(const Codes& codes, std::int64_t row, std::int64_t byte, ByteTile<kTileRows>& tile) {
  const auto [words, group, first] = load_share<4, 16, kWide>(codes, row, byte);
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    std::uint32_t square[4] = {words[0][part], words[1][part], words[2][part], words[3][part]};
    transpose_bytes(square);
#pragma unroll
    for (int i = 0; i < 4; ++i) tile.store(first + part * 4 + i, group, square[i]);
  }
}

// Fills the tile from 256 rows of 64 bytes, which hold 128 elements each. A thread loads eight rows of 8 bytes. The
// even columns of two rows are packed into one row of bytes, and the odd columns into another row. These rows are then
// transposed as bytes.
template <bool kWide>
__device__ void fill_nibbles(const Codes& codes, std::int64_t row, std::int64_t byte, ByteTile<kTileRows>& tile) {
  const auto [words, group, first] = load_share<8, 8, kWide>(codes, row, byte);
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    std::uint32_t even[4], odd[4];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const std::uint32_t upper = words[2 * pair][part], lower = words[2 * pair + 1][part];
      even[pair] = (upper & 0x0F0F0F0FU) | (lower << 4 & 0xF0F0F0F0U);
      odd[pair] = (upper >> 4 & 0x0F0F0F0FU) | (lower & 0xF0F0F0F0U);
    }
    transpose_bytes(even);
    transpose_bytes(odd);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      tile.store(2 * (first + part * 4 + i), group, even[i]);
      tile.store(2 * (first + part * 4 + i) + 1, group, odd[i]);
    }
  }
}

// Transposes a part of the codes. `block` is the number of the part among those of all matrices.
__device__ void transpose_codes(Codes codes, unsigned block, ByteTile<kTileRows>& tile) {
  const auto tiles = static_cast<unsigned>(codes.tiles()), down = static_cast<unsigned>(codes.tiles_down());
  const unsigned matrix = block / tiles;
  block -= matrix * tiles;
  codes.source += matrix * codes.rows * codes.row_bytes;
  codes.target += matrix * codes.target_rows * codes.target_bytes;
  const std::int64_t target_row = static_cast<std::int64_t>(block % down) * kTileRows;
  const std::int64_t target_byte = static_cast<std::int64_t>(block / down) * kTileBytes;
  if (codes.nibbles && codes.wide_loads)
    fill_nibbles<true>(codes, target_byte * 2, target_row / 2, tile);
  else if (codes.nibbles)
    fill_nibbles<false>(codes, target_byte * 2, target_row / 2, tile);
  else if (codes.wide_loads)
    fill_bytes<true>(codes, target_byte, target_row, tile);
  else
    fill_bytes<false>(codes, target_byte, target_row, tile);
  __syncthreads();
  const auto store = [&](auto wide) {
    store_tile<kTileRows, kThreads, wide.value>(tile, codes.target, target_row, target_byte, codes.target_rows,
                                                codes.target_bytes);
  };
  if (codes.wide_stores)
    store(std::true_type());
  else
    store(std::false_type());
}

Codes codes_of(const Transposition& weight) {
  const Extent padded = weight.codes();
  const bool nibbles = weight.encoding.element == Element::e2m1;
  const int in_byte = elements_in_byte(weight.encoding.element), load = nibbles ? 8 : 16;
  Codes codes{.source = weight.source.data,
              .target = weight.target.data,
              .matrices = weight.matrices,
              .rows = weight.matrix.rows,
              .row_bytes = weight.matrix.cols / in_byte,
              .target_rows = padded.rows,
              .target_bytes = padded.cols / in_byte,
              .nibbles = nibbles};
  codes.wide_loads = codes.row_bytes % load == 0 && is_aligned(codes.source, static_cast<std::uintptr_t>(load));
  codes.wide_stores = codes.target_bytes % 16 == 0 && is_aligned(codes.target, 16);
  return codes;
}

constexpr int kScaleSide = 32;

struct ScaleStack {
  const void* source;
  void* target;
  std::int64_t matrices;
  Extent extent;             // extent of the scales of a matrix of the source
  std::int64_t target_cols;  // scales in a row of the target, at least extent.rows
  bool wide;                 // whether the scales are fp32 instead of bytes
  const float* source_amax;
  float* target_amax;  // null: the amaxes are not written

  __host__ __device__ std::int64_t across() const { return pieces_of(extent.cols, kScaleSide); }
  // Returns at least one square, because the first square of a matrix copies its amax.
  __host__ __device__ std::int64_t squares() const {
    const std::int64_t count = pieces_of(target_cols, kScaleSide) * across();
    return count > 0 ? count : 1;
  }
};

// Writes a square of the target. Scales outside of the source are 0.
template <typename T>
__device__ void transpose_scale_square(const ScaleStack& scales, unsigned matrix, unsigned square,
                                       T (&tile)[kScaleSide][kScaleSide + 1]) {
  const T* source = static_cast<const T*>(scales.source) + matrix * scales.extent.rows * scales.extent.cols;
  T* target = static_cast<T*>(scales.target) + matrix * scales.extent.cols * scales.target_cols;
  const auto across = static_cast<unsigned>(scales.across() > 0 ? scales.across() : 1);
  const std::int64_t row = static_cast<std::int64_t>(square / across) * kScaleSide;
  const std::int64_t col = static_cast<std::int64_t>(square % across) * kScaleSide;
  const int lane = static_cast<int>(threadIdx.x) % kScaleSide, first = static_cast<int>(threadIdx.x) / kScaleSide;
#pragma unroll
  for (int r = 0; r < kScaleSide; r += kThreads / kScaleSide)
    tile[first + r][lane] = row + first + r < scales.extent.rows && col + lane < scales.extent.cols
                                ? source[(row + first + r) * scales.extent.cols + col + lane]
                                : T{0};
  __syncthreads();
#pragma unroll
  for (int c = 0; c < kScaleSide; c += kThreads / kScaleSide)
    if (col + first + c < scales.extent.cols && row + lane < scales.target_cols)
      target[(col + first + c) * scales.target_cols + row + lane] = tile[lane][first + c];
}

ScaleStack scales_of(const Transposition& weight) {
  const bool has_amaxes = weight.source.tensor_amax != nullptr && weight.target.tensor_amax != nullptr;
  return {.source = weight.source.scales,
          .target = weight.target.scales,
          .matrices = weight.matrices,
          .extent = scale_extent(weight.encoding, weight.matrix),
          .target_cols = weight.scales().cols,
          .wide = weight.encoding.scale == Scale::fp32,
          .source_amax = weight.source.tensor_amax,
          .target_amax = has_amaxes ? weight.target.tensor_amax : nullptr};
}

// The blocks of a weight: first those of its codes, then those of its scales.
struct Weight {
  Codes codes;
  ScaleStack scales;

  __host__ __device__ std::int64_t code_blocks() const { return codes.matrices * codes.tiles(); }
  __host__ __device__ std::int64_t blocks() const { return code_blocks() + scales.matrices * scales.squares(); }
};
using TransposedList = WeightList<Weight>;

union Shared {
  ByteTile<kTileRows> codes;
  std::uint32_t words[kScaleSide][kScaleSide + 1];
  std::uint8_t bytes[kScaleSide][kScaleSide + 1];
};

__global__ void __launch_bounds__(kThreads) transpose_weights(const __grid_constant__ TransposedList list) {
  __shared__ Shared shared;
  const int number = list.item_of(blockIdx.x);
  const Weight& weight = list.items[number];
  unsigned block = blockIdx.x - list.first_block[number];
  if (block < weight.code_blocks()) return transpose_codes(weight.codes, block, shared.codes);
  block -= static_cast<unsigned>(weight.code_blocks());
  const ScaleStack& scales = weight.scales;
  const auto squares = static_cast<unsigned>(scales.squares());
  const unsigned matrix = block / squares, square = block - matrix * squares;
  if (square == 0 && threadIdx.x == 0 && scales.target_amax != nullptr)
    scales.target_amax[matrix] = scales.source_amax[matrix];
  if (scales.wide)
    transpose_scale_square(scales, matrix, square, shared.words);
  else
    transpose_scale_square(scales, matrix, square, shared.bytes);
}

}  // namespace

void create_columnwise(std::span<const Transposition> weights, base::CudaStream stream) {
  for (const Transposition& weight : weights) check_transposition(weight);
  for_each_list<Weight>(
      weights,
      [](const Transposition& weight) {
        return Weight{codes_of(weight), scales_of(weight)};
      },
      [](const Weight& weight) { return weight.blocks(); },
      [&](const TransposedList& list, unsigned blocks) { transpose_weights<<<blocks, kThreads, 0, stream>>>(list); });
}

}  // namespace tessera::quant::cuda
