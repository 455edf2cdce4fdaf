// Rounds matrices of experts to e4m3 codes, by rows or transposed. A thread block processes a square of 128 x 128
// elements: a strip (strips.cuh) in 128 columns.
#include "tessera/ops/grouped/grouped_codes.h"
#include "tessera/ops/grouped/strips.cuh"
#include "tessera/quant/cuda/square_tile.cuh"

namespace tessera::ops::cuda {
namespace {

using quant::cuda::SquarePlace;
constexpr int kSide = SquarePlace::kSide;
static_assert(kCodeStrip == kSide);

// Loads eight elements of a strip; elements outside of the strip are 0. If `whole` is true, each row begins at a
// multiple of 16 bytes.
__device__ uint4 load_elements(const StackedRows& source, const Strip& strip, int row, std::int64_t col, bool whole) {
  if (row >= strip.rows || col >= source.cols) return {0, 0, 0, 0};
  const quant::bfloat16* from = source.values + (strip.row + row) * source.cols + col;
  return whole ? __ldg(reinterpret_cast<const uint4*>(from)) : quant::cuda::load_part(from, source.cols - col);
}

__device__ void write_factors(const CodesCast& cast, const Strip& strip) {
  if (static_cast<int>(threadIdx.x) >= strip.rows) return;
  const float own = number_at(cast.own, strip.matrix),
              partner = number_at(cast.partner, strip.matrix / cast.per_expert);
  cast.factors[strip.row + threadIdx.x] = own * partner;
}

// Writes the transposed square. Matrices of a stack without `ends` are transposed one by one.
__device__ void store_columns(const CodesCast& cast, const Strip& strip, std::int64_t first_col,
                              const quant::cuda::ByteTile<kSide>& tile) {
  std::uint8_t* to = cast.codes;
  std::int64_t stride = cast.stride, first = strip.to;
  if (cast.source.ends == nullptr) {
    stride = cast.source.height;
    first -= strip.matrix * stride;
    to += strip.matrix * stride * cast.source.cols;
  }
  quant::cuda::store_tile<kSide, SquarePlace::kThreads, true>(tile, to, first_col, first, cast.source.cols, stride,
                                                              first + strip.to_rows);
}

template <bool kTransposed>
__global__ void __launch_bounds__(SquarePlace::kThreads)
    cast_squares(const __grid_constant__ CodesCast cast, bool whole) {
  __shared__ quant::cuda::ByteTile<kTransposed ? kSide : 1> tile;
  __shared__ float scratch[SquarePlace::kThreads / kWarp];
  const Strip strip = strip_of_block<kSide>(cast.source, cast.places, kTransposed);
  if (strip.to_rows <= 0) return;
  const float multiplier = number_at(cast.scales, strip.matrix);
  const std::int64_t first_col = std::int64_t{blockIdx.y} * kSide, col = first_col + SquarePlace::col();
  std::uint32_t amaxes = 0;
#pragma unroll
  for (int part = 0; part < SquarePlace::kParts; ++part) {
    std::uint32_t codes[SquarePlace::kRows][2];
#pragma unroll
    for (int r = 0; r < SquarePlace::kRows; ++r) {
      const int row = SquarePlace::row(part) + r;
      const uint4 words = load_elements(cast.source, strip, row, col, whole);
      quant::cuda::encode_words<quant::Element::e4m3>(words, multiplier, amaxes, codes[r]);
      if constexpr (!kTransposed)
        if (row < strip.rows && col < cast.source.cols)
          *reinterpret_cast<uint2*>(cast.codes + (strip.row + row) * cast.source.cols + col) = {codes[r][0],
                                                                                                codes[r][1]};
    }
    if constexpr (kTransposed) quant::cuda::store_transposed(tile, part, codes);
  }
  quant::cuda::raise_amax(cast.amax, amaxes, scratch);
  if (cast.factors != nullptr && blockIdx.y == 0) write_factors(cast, strip);
  if constexpr (kTransposed) {
    __syncthreads();
    store_columns(cast, strip, first_col, tile);
  }
}

}  // namespace

void cast_codes(const CodesCast& cast, base::CudaStream stream) {
  if (is_empty(cast.source)) return;
  const bool is_stack = cast.source.ends == nullptr;
  const std::int64_t stride = is_stack ? cast.source.height : cast.stride;
  if (cast.source.cols % quant::kCodesMultiple != 0 || (cast.is_transposed && stride % quant::kCodesMultiple != 0) ||
      !quant::cuda::is_aligned(cast.codes, 16))
    base::fail("cast_codes: expected sizes and results aligned to 16 bytes");
  const dim3 grid(quant::cuda::checked_blocks(strips_of(cast.source, kCodeStrip)),
                  quant::cuda::checked_blocks(ceil_div(cast.source.cols, kSide)), 1);
  const bool whole = quant::cuda::is_aligned(cast.source.values, 16);
  if (cast.is_transposed)
    cast_squares<true><<<grid, SquarePlace::kThreads, 0, stream>>>(cast, whole);
  else
    cast_squares<false><<<grid, SquarePlace::kThreads, 0, stream>>>(cast, whole);
  check_launch("cast_codes");
}

}  // namespace tessera::ops::cuda
