// Casts a bf16 matrix to fp8 in one pass: writes the codes, the transposed codes and the amax.
#include <string>

#include "tessera/quant/cuda/quantize_cuda.h"
#include "tessera/quant/cuda/square_tile.cuh"

namespace tessera::quant::cuda {
namespace {

template <Element kElement>
__global__ void __launch_bounds__(SquarePlace::kThreads)
    cast_squares(const __grid_constant__ Fp8Cast cast, bool whole) {
  __shared__ ByteTile<SquarePlace::kSide> tile;
  __shared__ float scratch[SquarePlace::kThreads / 32];
  const SquareTile square(cast.matrix, cast.padded, blockIdx.x);
  SquareVectors vectors;
  load_square(cast.source, square, whole, vectors);
  const float multiplier = *cast.multiplier;
  std::uint32_t amaxes = 0;
#pragma unroll
  for (int part = 0; part < SquarePlace::kParts; ++part) {
    std::uint32_t codes[SquarePlace::kRows][2];
#pragma unroll
    for (int r = 0; r < SquarePlace::kRows; ++r) {
      encode_words<kElement>(vectors[part][r], multiplier, amaxes, codes[r]);
      if (cast.rowwise != nullptr) store_row(cast.rowwise, cast.padded.cols, square, part, r, codes[r]);
    }
    if (cast.columnwise != nullptr) store_transposed(tile, part, codes);
  }
  raise_amax(cast.amax, amaxes, scratch);
  if (cast.columnwise == nullptr) return;
  __syncthreads();
  store_tile<SquarePlace::kSide, SquarePlace::kThreads, true>(tile, cast.columnwise, square.col, square.row,
                                                              cast.padded.cols, cast.padded.rows);
}

}  // namespace

void check_square_tile(const char* what, Extent matrix, Extent padded, const void* rowwise, const void* columnwise) {
  if (padded.rows < matrix.rows || padded.cols < matrix.cols || padded.rows % 16 != 0 || padded.cols % 16 != 0)
    base::fail(std::string(what) + ": expected a padded extent of multiples of 16 for " + std::to_string(matrix.rows) +
               " x " + std::to_string(matrix.cols) + ", got " + std::to_string(padded.rows) + " x " +
               std::to_string(padded.cols));
  if (!is_aligned(rowwise, 16) || !is_aligned(columnwise, 16))
    base::fail(std::string(what) + ": expected results aligned to 16 bytes");
}

void cast_fp8(const Fp8Cast& cast, base::CudaStream stream) {
  check_square_tile("cast_fp8", cast.matrix, cast.padded, cast.rowwise, cast.columnwise);
  if (cast.element == Element::e2m1) base::fail("cast_fp8: expected an fp8 type, got E2M1");
  const unsigned squares = squares_of(cast.padded);
  if (squares == 0) return;
  const bool whole = cast.matrix.cols % kVector == 0 && is_aligned(cast.source, 16);
  if (cast.element == Element::e4m3)
    cast_squares<Element::e4m3><<<squares, SquarePlace::kThreads, 0, stream>>>(cast, whole);
  else
    cast_squares<Element::e5m2><<<squares, SquarePlace::kThreads, 0, stream>>>(cast, whole);
  TESSERA_CUDA_CHECK(cudaGetLastError());
}

}  // namespace tessera::quant::cuda
