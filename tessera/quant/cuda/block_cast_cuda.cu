// Casts a bf16 matrix to fp8 in blocks of 128 elements, along its rows and along its columns, in one pass. A square of
// the matrix stays in registers while its amaxes and its codes are computed.
#include "tessera/quant/cuda/quantize_cuda.h"
#include "tessera/quant/cuda/square_tile.cuh"

namespace tessera::quant::cuda {
namespace {

constexpr int kSide = SquarePlace::kSide, kWarps = SquarePlace::kThreads / 32;
static_assert(kSide == kBlockCast && 2 * kSide == SquarePlace::kThreads);

// The data of a square that the threads of a block share. The amaxes of columns are stored as pairs of bf16.
struct Shared {
  ByteTile<kSide> tile;
  float row_amaxes[kSide];
  float square_amax;
  std::uint32_t column_amaxes[kWarps][kSide / 2];
  float row_multipliers[kSide];
  alignas(16) float column_multipliers[kSide];
};

__device__ std::uint32_t pair_of(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// Computes the amaxes of the rows and of the columns. 16 lanes hold a row of a square, and two lanes of each warp hold
// a column.
__device__ void share_amaxes(const SquareVectors& vectors, Shared& shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  std::uint32_t columns[kVector / 2] = {};
#pragma unroll
  for (int part = 0; part < SquarePlace::kParts; ++part)
#pragma unroll
    for (int r = 0; r < SquarePlace::kRows; ++r) {
      std::uint32_t row = 0;
#pragma unroll
      for (int i = 0; i < kVector / 2; ++i) {
        const std::uint32_t pair = pair_of(vectors[part][r], i);
        row = greater_magnitudes(row, pair);
        columns[i] = greater_magnitudes(columns[i], pair);
      }
#pragma unroll
      for (int distance = 8; distance > 0; distance /= 2)
        row = greater_magnitudes(row, __shfl_xor_sync(kAllLanes, row, distance));
      if (lane % 16 == 0) shared.row_amaxes[SquarePlace::row(part) + r] = fmaxf(low_half(row), high_half(row));
    }
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    columns[i] = greater_magnitudes(columns[i], __shfl_xor_sync(kAllLanes, columns[i], 16));
    if (lane < 16) shared.column_amaxes[warp][lane * (kVector / 2) + i] = columns[i];
  }
}

// Computes one amax for a whole square: the greatest amax of its rows.
__device__ void join_amaxes(Shared& shared) {
  if (threadIdx.x < 32) {
    float greatest = 0;
    for (int row = static_cast<int>(threadIdx.x); row < kSide; row += 32)
      greatest = fmaxf(greatest, shared.row_amaxes[row]);
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
      greatest = fmaxf(greatest, __shfl_xor_sync(kAllLanes, greatest, distance));
    if (threadIdx.x == 0) shared.square_amax = greatest;
  }
}

// Computes the scale of a square, which all its rows and columns use.
__device__ void make_square_scale(const BlockCast& cast, const SquareTile& square, Shared& shared) {
  const Encoding encoding{.element = cast.element, .powers_of_two = cast.powers_of_two};
  const TileScale scale = operand_scale(encoding, shared.square_amax, 0);
  const int number = static_cast<int>(threadIdx.x) % kSide;
  (static_cast<int>(threadIdx.x) < kSide ? shared.row_multipliers : shared.column_multipliers)[number] =
      scale.multiplier;
  if (threadIdx.x != 0 || square.row >= cast.matrix.rows || square.col >= cast.matrix.cols) return;
  const std::int64_t row = square.row / kSide, col = square.col / kSide;
  if (cast.rowwise != nullptr)
    cast.rowwise_scales[row * scale_stride(cast.matrix.cols) + col] = __uint_as_float(scale.stored);
  if (cast.columnwise != nullptr)
    cast.columnwise_scales[col * scale_stride(cast.matrix.rows) + row] = __uint_as_float(scale.stored);
}

// Computes the scales of the blocks. The first half of the threads computes the scales of the rows, the other half the
// scales of the columns.
__device__ void make_block_scales(const BlockCast& cast, const SquareTile& square, Shared& shared) {
  const Encoding encoding{.element = cast.element, .powers_of_two = cast.powers_of_two};
  const int number = static_cast<int>(threadIdx.x) % kSide;
  if (static_cast<int>(threadIdx.x) < kSide) {
    const TileScale scale = operand_scale(encoding, shared.row_amaxes[number], 0);
    shared.row_multipliers[number] = scale.multiplier;
    const std::int64_t row = square.row + number;
    if (cast.rowwise != nullptr && row < cast.padded.rows && square.col < cast.matrix.cols)
      cast.rowwise_scales[square.col / kSide * cast.padded.rows + row] = __uint_as_float(scale.stored);
  } else {
    std::uint32_t pair = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) pair = greater_magnitudes(pair, shared.column_amaxes[warp][number / 2]);
    const TileScale scale = operand_scale(encoding, number % 2 == 0 ? low_half(pair) : high_half(pair), 0);
    shared.column_multipliers[number] = scale.multiplier;
    const std::int64_t col = square.col + number;
    if (cast.columnwise != nullptr && col < cast.padded.cols && square.row < cast.matrix.rows)
      cast.columnwise_scales[square.row / kSide * cast.padded.cols + col] = __uint_as_float(scale.stored);
  }
}

template <Element kElement>
__global__ void __launch_bounds__(SquarePlace::kThreads)
    cast_block_squares(const __grid_constant__ BlockCast cast, bool whole) {
  __shared__ Shared shared;
  const SquareTile square(cast.matrix, cast.padded, blockIdx.x);
  SquareVectors vectors;
  load_square(cast.source, square, whole, vectors);
  share_amaxes(vectors, shared);
  __syncthreads();
  if (cast.squares) {
    join_amaxes(shared);
    __syncthreads();
    make_square_scale(cast, square, shared);
  } else {
    make_block_scales(cast, square, shared);
  }
  __syncthreads();
  if (cast.rowwise != nullptr) {
#pragma unroll
    for (int part = 0; part < SquarePlace::kParts; ++part)
#pragma unroll
      for (int r = 0; r < SquarePlace::kRows; ++r) {
        const float multiplier = shared.row_multipliers[SquarePlace::row(part) + r];
        float values[kVector];
        unpack(vectors[part][r], values);
#pragma unroll
        for (int i = 0; i < kVector; ++i) values[i] *= multiplier;
        std::uint32_t codes[2];
        encode_vector<kElement>(values, codes);
        store_row(cast.rowwise, cast.padded.cols, square, part, r, codes);
      }
  }
  if (cast.columnwise == nullptr) return;
  float multipliers[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) multipliers[i] = shared.column_multipliers[SquarePlace::col() + i];
#pragma unroll
  for (int part = 0; part < SquarePlace::kParts; ++part) {
    std::uint32_t codes[SquarePlace::kRows][2];
#pragma unroll
    for (int r = 0; r < SquarePlace::kRows; ++r) {
      float values[kVector];
      unpack(vectors[part][r], values);
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] *= multipliers[i];
      encode_vector<kElement>(values, codes[r]);
    }
    store_transposed(shared.tile, part, codes);
  }
  __syncthreads();
  store_tile<kSide, SquarePlace::kThreads, true>(shared.tile, cast.columnwise, square.col, square.row, cast.padded.cols,
                                                 cast.padded.rows);
}

}  // namespace

void cast_blocks(const BlockCast& cast, base::CudaStream stream) {
  check_square_tile("cast_blocks", cast.matrix, cast.padded, cast.rowwise, cast.columnwise);
  if (cast.element == Element::e2m1) base::fail("cast_blocks: expected an fp8 type, got E2M1");
  const unsigned squares = squares_of(cast.padded);
  if (squares == 0) return;
  const bool whole = cast.matrix.cols % kVector == 0 && is_aligned(cast.source, 16);
  if (cast.element == Element::e4m3)
    cast_block_squares<Element::e4m3><<<squares, SquarePlace::kThreads, 0, stream>>>(cast, whole);
  else
    cast_block_squares<Element::e5m2><<<squares, SquarePlace::kThreads, 0, stream>>>(cast, whole);
  TESSERA_CUDA_CHECK(cudaGetLastError());
}

}  // namespace tessera::quant::cuda
