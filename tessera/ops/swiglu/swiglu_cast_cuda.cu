// SwiGLU and the cast of its results to fp8 in one pass. A block processes a square of 128 x 128 features. The
// intermediate results, rounded to bf16, stay in registers.
#include "tessera/ops/swiglu/swiglu_kernels.h"
#include "tessera/ops/swiglu/swiglu_packs.cuh"
#include "tessera/quant/cuda/square_tile.cuh"

namespace tessera::ops::cuda {
namespace {

using quant::Element, quant::Extent, quant::Fp8Cast;
using quant::cuda::SquareTile, quant::cuda::SquarePlace;

constexpr int kSide = SquarePlace::kSide, kRows = SquarePlace::kRows, kWarps = SquarePlace::kThreads / 32;
using Tile = quant::cuda::ByteTile<kSide>;
using Words = Pack<quant::bfloat16, quant::kVector>;

__device__ __forceinline__ Words words_of(const uint4& words) {
  return std::bit_cast<Words>(words);
}
__device__ __forceinline__ uint4 bits_of(const Words& words) {
  return std::bit_cast<uint4>(words);
}

// Loads a part of a square from one half of gate_up. Half 0 is gate, the first features of a row; half 1 is up, the
// last features.
__device__ __forceinline__ uint4 load_half(const SwigluCast& cast, const SquareTile& square, int part, int r, int half,
                                           bool whole) {
  return load_row(cast.gate_up + half * cast.features, 2 * cast.features, square, part, r, whole);
}

// Stores a tile in the transposed result. The first column of the square is row `first` of that result.
__device__ __forceinline__ void store_columns(const Tile& tile, const Fp8Cast& cast, const SquareTile& square,
                                              std::int64_t first, std::int64_t end) {
  quant::cuda::store_tile<kSide, SquarePlace::kThreads, true>(tile, cast.columnwise, first, square.row, end,
                                                              cast.padded.rows);
}

template <Element kElement>
__global__ void __launch_bounds__(SquarePlace::kThreads)
    cast_swiglu(const __grid_constant__ SwigluCast cast, bool whole) {
  __shared__ Tile tile;
  __shared__ float scratch[kWarps];
  const Fp8Cast& result = cast.result;
  const SquareTile square(result.matrix, result.padded, blockIdx.x);
  const float multiplier = *result.multiplier;
  std::uint32_t amaxes = 0;
#pragma unroll
  for (int part = 0; part < SquarePlace::kParts; ++part) {
    uint4 gate[kRows], up[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      gate[r] = load_half(cast, square, part, r, 0, whole);
      up[r] = load_half(cast, square, part, r, 1, whole);
    }
    std::uint32_t codes[kRows][2];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const uint4 out = bits_of(swiglu_of(words_of(gate[r]), words_of(up[r])));
      quant::cuda::encode_words<kElement>(out, multiplier, amaxes, codes[r]);
      if (result.rowwise != nullptr) store_row(result.rowwise, result.padded.cols, square, part, r, codes[r]);
    }
    if (result.columnwise != nullptr) store_transposed(tile, part, codes);
  }
  quant::cuda::raise_amax(result.amax, amaxes, scratch);
  if (result.columnwise == nullptr) return;
  __syncthreads();
  store_columns(tile, result, square, square.col, result.padded.cols);
}

template <Element kElement, bool kWithOutput>
__global__ void __launch_bounds__(SquarePlace::kThreads)
    cast_swiglu_gradient(const __grid_constant__ SwigluCast cast, bool whole) {
  __shared__ Tile gate_tile, up_tile;
  __shared__ float scratch[kWarps];
  const Fp8Cast& result = cast.result;
  const std::int64_t features = cast.features;
  // The square of this block in the gradient of gate. The same square in the gradient of up is `features` columns
  // further. The number of features is a multiple of 16, so columns need no padding.
  const SquareTile square({.rows = result.matrix.rows, .cols = features},
                          {.rows = result.padded.rows, .cols = features}, blockIdx.x);
  const float multiplier = *result.multiplier;
  const float output_multiplier = kWithOutput ? *cast.output.multiplier : 0;
  std::uint32_t amaxes = 0, unused = 0;
  std::uint32_t out_codes[kWithOutput ? SquarePlace::kParts : 1][kRows][2];
#pragma unroll
  for (int part = 0; part < SquarePlace::kParts; ++part) {
    uint4 gate[kRows], up[kRows], dout[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      gate[r] = load_half(cast, square, part, r, 0, whole);
      up[r] = load_half(cast, square, part, r, 1, whole);
      dout[r] = load_row(cast.dout, features, square, part, r, whole);
    }
    std::uint32_t gate_codes[kRows][2], up_codes[kRows][2];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const auto packs = swiglu_gradient_of<kWithOutput>(words_of(gate[r]), words_of(up[r]), words_of(dout[r]));
      quant::cuda::encode_words<kElement>(bits_of(packs.dgate), multiplier, amaxes, gate_codes[r]);
      quant::cuda::encode_words<kElement>(bits_of(packs.dup), multiplier, amaxes, up_codes[r]);
      if constexpr (kWithOutput)
        quant::cuda::encode_words<Element::e4m3>(bits_of(packs.out), output_multiplier, unused, out_codes[part][r]);
      if (result.rowwise == nullptr) continue;
      store_row(result.rowwise, 2 * features, square, part, r, gate_codes[r]);
      store_row(result.rowwise + features, 2 * features, square, part, r, up_codes[r]);
    }
    if (result.columnwise == nullptr) continue;
    store_transposed(gate_tile, part, gate_codes);
    store_transposed(up_tile, part, up_codes);
  }
  quant::cuda::raise_amax(result.amax, amaxes, scratch);
  __syncthreads();
  if (result.columnwise != nullptr) {
    store_columns(gate_tile, result, square, square.col, features);
    store_columns(up_tile, result, square, features + square.col, 2 * features);
  }
  if constexpr (kWithOutput) {
    __syncthreads();
#pragma unroll
    for (int part = 0; part < SquarePlace::kParts; ++part) store_transposed(gate_tile, part, out_codes[part]);
    __syncthreads();
    store_columns(gate_tile, cast.output, square, square.col, features);
  }
}

void check_cast(const char* what, const Fp8Cast& cast) {
  quant::cuda::check_square_tile(what, cast.matrix, cast.padded, cast.rowwise, cast.columnwise);
  if (cast.element == Element::e2m1) base::fail(std::string(what) + ": expected an fp8 type, got E2M1");
}

// Calls launch with the element as a constant.
template <typename Launch>
void dispatch_fp8(Element element, Launch&& launch) {
  if (element == Element::e4m3) return launch(std::integral_constant<Element, Element::e4m3>());
  launch(std::integral_constant<Element, Element::e5m2>());
}

}  // namespace

void swiglu_forward_cast(const SwigluCast& cast, base::CudaStream stream) {
  check_cast("swiglu_forward_cast", cast.result);
  const unsigned squares = quant::cuda::squares_of(cast.result.padded);
  if (squares == 0) return;
  const bool whole = rows_whole<quant::bfloat16>(cast.features, cast.gate_up);
  dispatch_fp8(cast.result.element, [&](auto element) {
    cast_swiglu<element.value><<<squares, SquarePlace::kThreads, 0, stream>>>(cast, whole);
  });
  check_launch("swiglu_forward_cast");
}

void swiglu_backward_cast(const SwigluCast& cast, base::CudaStream stream) {
  check_cast("swiglu_backward_cast", cast.result);
  const bool output = cast.output.columnwise != nullptr;
  if (output) check_cast("swiglu_backward_cast of out", cast.output);
  if (cast.features % kCastFeatures != 0 || (output && cast.output.element != Element::e4m3))
    base::fail("swiglu_backward_cast: expected a number of features that is a multiple of 16, and out in E4M3");
  const unsigned squares = quant::cuda::squares_of({.rows = cast.result.padded.rows, .cols = cast.features});
  if (squares == 0) return;
  const bool whole = rows_whole<quant::bfloat16>(cast.features, cast.gate_up, cast.dout);
  dispatch_fp8(cast.result.element, [&](auto element) {
    dispatch_bool(output, [&](auto has_out) {
      cast_swiglu_gradient<element.value, has_out.value><<<squares, SquarePlace::kThreads, 0, stream>>>(cast, whole);
    });
  });
  check_launch("swiglu_backward_cast");
}

}  // namespace tessera::ops::cuda
