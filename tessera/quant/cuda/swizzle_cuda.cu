// Implements pad_scales and swizzle_scales of swizzle.h on a stream.
#include "tessera/quant/cuda/quantize_cuda.h"
#include "tessera/quant/cuda/vectors.cuh"
#include "tessera/quant/formats/swizzle.h"

namespace tessera::quant::cuda {
namespace {

constexpr int kThreads = 256;
constexpr std::uint32_t kRun = 4;  // adjacent scales that a thread writes

// The numbers of runs fit into 32 bits, so that the kernels use fast divisions.
struct Runs {
  std::uint32_t across = 0, down = 0;

  Runs(std::int64_t across, std::int64_t down)
      : across(static_cast<std::uint32_t>(across)), down(static_cast<std::uint32_t>(down)) {
    if (across > 0 && down > 0x7FFFFFFF / across)
      base::fail("pad_scales or swizzle_scales: expected at most 2147483647 runs of scales in one launch, got more");
  }
  unsigned blocks() const { return static_cast<unsigned>((across * down + kThreads - 1) / kThreads); }
};

struct Padding {
  const std::uint8_t* scales;
  std::uint8_t* padded;
  Extent compact, extent;
  std::uint32_t rows;     // rows of the padded scales that are not padding
  std::uint32_t repeats;  // number of padded rows for each row of compact scales
  bool words;             // whether runs of the padded scales begin at multiples of 4 bytes
};

__global__ void __launch_bounds__(kThreads) pad(const __grid_constant__ Padding padding, Runs runs) {
  const std::uint32_t run = blockIdx.x * kThreads + threadIdx.x, row = run / runs.across;
  const std::uint32_t col = (run - row * runs.across) * kRun;
  if (row >= runs.down) return;
  std::uint32_t word = 0;
  const std::uint8_t* from = padding.scales + (row / padding.repeats) * padding.compact.cols + col;
#pragma unroll
  for (int i = 0; i < static_cast<int>(kRun); ++i)
    if (row < padding.rows && col + i < padding.compact.cols) word |= static_cast<std::uint32_t>(from[i]) << (8 * i);
  std::uint8_t* to = padding.padded + row * padding.extent.cols + col;
  if (padding.words) {
    *reinterpret_cast<std::uint32_t*>(to) = word;
  } else {
#pragma unroll
    for (int i = 0; i < static_cast<int>(kRun); ++i) to[i] = static_cast<std::uint8_t>(word >> (8 * i));
  }
}

// Swizzles runs of four adjacent blocks of one line. kAlongRows is true if the blocks of a line are in one column of
// the padded scales.
template <bool kAlongRows>
__global__ void __launch_bounds__(kThreads)
    swizzle(const std::uint8_t* __restrict__ padded, Extent extent, Runs runs, std::uint8_t* __restrict__ swizzled) {
  const std::uint32_t number = blockIdx.x * kThreads + threadIdx.x, y = number / runs.across;
  const std::uint32_t x = number - y * runs.across;
  if (y >= runs.down) return;
  const std::int64_t line = kAlongRows ? x : y, block = (kAlongRows ? y : x) * kRun;
  const std::int64_t blocks = kAlongRows ? extent.rows : extent.cols;
  const std::int64_t first = kAlongRows ? block * extent.cols + line : line * extent.cols + block;
  const std::int64_t step = kAlongRows ? extent.cols : 1;
  std::uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < static_cast<int>(kRun); ++i)
    word |= static_cast<std::uint32_t>(padded[first + i * step]) << (8 * i);
  *reinterpret_cast<std::uint32_t*>(swizzled + swizzled_offset(line, block, blocks)) = word;
}

}  // namespace

void pad_scales(const std::uint8_t* scales, Extent matrix, const Encoding& encoding, std::uint8_t* padded,
                base::CudaStream stream) {
  const bool along_rows = encoding.tile.cols == 1;
  const Padding padding{
      .scales = scales,
      .padded = padded,
      .compact = scale_extent(encoding, matrix),
      .extent = padded_scale_extent(encoding, matrix),
      .rows = static_cast<std::uint32_t>(along_rows ? scale_extent(encoding, matrix).rows : matrix.rows),
      .repeats = static_cast<std::uint32_t>(along_rows ? 1 : encoding.tile.rows),
      .words = is_aligned(padded, kRun)};
  const Runs runs(padding.extent.cols / kRun, padding.extent.rows);
  if (runs.blocks() == 0) return;
  pad<<<runs.blocks(), kThreads, 0, stream>>>(padding, runs);
  TESSERA_CUDA_CHECK(cudaGetLastError());
}

void swizzle_scales(const std::uint8_t* padded, Extent matrix, const Encoding& encoding, std::uint8_t* swizzled,
                    base::CudaStream stream) {
  const Extent extent = padded_scale_extent(encoding, matrix);
  const bool along_rows = encoding.tile.cols == 1;
  const Runs runs = along_rows ? Runs(extent.cols, extent.rows / kRun) : Runs(extent.cols / kRun, extent.rows);
  if (runs.blocks() == 0) return;
  if (!is_aligned(swizzled, kRun)) base::fail("swizzle_scales: expected a target aligned to 4 bytes");
  if (along_rows)
    swizzle<true><<<runs.blocks(), kThreads, 0, stream>>>(padded, extent, runs, swizzled);
  else
    swizzle<false><<<runs.blocks(), kThreads, 0, stream>>>(padded, extent, runs, swizzled);
  TESSERA_CUDA_CHECK(cudaGetLastError());
}

}  // namespace tessera::quant::cuda
