#include <algorithm>

#include "tessera/ops/optimizer/square_sums.h"
#include "tessera/ops/packs.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = 256;

// The number of consecutive elements that a thread reads. Narrow types use the number of the type in which their sums
// are added, so that equal values have equal sums in both types.
template <typename T>
constexpr int kElements = std::min(kPack<T>, kPack<float>);
// The number of packs of a thread that are loaded together. It does not change the order.
template <typename T>
constexpr int kSteps = 4 * kPack<T> / kElements<T>;

// Returns whether all elements of a row are zeros, so that the row need not be read.
__device__ __forceinline__ bool is_zero(const std::uint8_t* states, std::int64_t row) {
  return states != nullptr && states[row] == 0;
}

// kTeam threads (a warp or the block) sum a row, and the sums of the warps are added in order. ordered_sum_squares of
// quant/device_kernels.h adds in the same order, so its results may replace the results of this kernel.
template <bool kWhole, int kTeam, typename T>
__global__ void __launch_bounds__(kThreads)
    row_sums(const T* __restrict__ values, std::int64_t rows, std::int64_t cols, std::int64_t stride,
             double* __restrict__ sums, const std::uint8_t* __restrict__ states) {
  constexpr int N = kElements<T>, kStep = kTeam * N;
  __shared__ double scratch[kWarp];
  const std::int64_t row = std::int64_t{blockIdx.x} * (kThreads / kTeam) + threadIdx.x / kTeam;
  if (row >= rows) return;
  if (is_zero(states, row)) cols = 0;
  const T* data = values + row * stride;
  double sum = 0;
  for (std::int64_t start = threadIdx.x % kTeam * N; start < cols; start += kSteps<T> * kStep) {
    Pack<T, N> packs[kSteps<T>];
#pragma unroll
    for (int i = 0; i < kSteps<T>; ++i) packs[i] = load_pack<kWhole, N>(data, start + i * kStep, cols);
#pragma unroll
    for (int i = 0; i < kSteps<T>; ++i) {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const double value = packs[i][k];
        sum = fma(value, value, sum);
      }
    }
  }
  sum = warp_sum(sum);
  if constexpr (kTeam != kWarp) {
    if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
      for (int warp = 1; warp < kTeam / kWarp; ++warp) sum += scratch[warp];
  }
  if (threadIdx.x % kTeam == 0) sums[row] = sum;
}

// Sums kRows rows, each in the order of row_sums with a team of all threads. A row has at most kAll packs for each
// thread. With several rows in flight, short rows are read at the speed of memory.
template <bool kWhole, int kRows, int kAll, typename T>
__global__ void __launch_bounds__(kThreads)
    sums_of_rows(const T* __restrict__ values, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                 double* __restrict__ sums, const std::uint8_t* __restrict__ states) {
  constexpr int N = kElements<T>, kWarps = kThreads / kWarp;
  __shared__ double scratch[kRows][kWarps];
  const std::int64_t first = std::int64_t{blockIdx.x} * kRows;
  Pack<T, N> packs[kRows][kAll];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const bool is_row = first + r < rows && !is_zero(states, first + r);
    const T* data = values + (is_row ? first + r : first) * stride;
#pragma unroll
    for (int i = 0; i < kAll; ++i)
      packs[r][i] = load_pack<kWhole, N>(data, (std::int64_t{i} * kThreads + threadIdx.x) * N, is_row ? cols : 0);
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    double sum = 0;
#pragma unroll
    for (int i = 0; i < kAll; ++i) {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const double value = packs[r][i][k];
        sum = fma(value, value, sum);
      }
    }
    sum = warp_sum(sum);
    if (threadIdx.x % kWarp == 0) scratch[r][threadIdx.x / kWarp] = sum;
  }
  __syncthreads();
  if (threadIdx.x >= kRows || first + threadIdx.x >= rows) return;
  double sum = scratch[threadIdx.x][0];
  for (int warp = 1; warp < kWarps; ++warp) sum += scratch[threadIdx.x][warp];
  sums[first + threadIdx.x] = sum;
}

}  // namespace

void row_square_sums(const void* values, quant::DType type, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                     double* sums, base::CudaStream stream, const std::uint8_t* states) {
  if (rows == 0) return;
  dispatch_floating(type, [&](auto element) {
    using T = decltype(element);
    constexpr int N = kElements<T>;
    const bool whole = cols % N == 0 && is_aligned(values, N * sizeof(T)) && (rows == 1 || stride % N == 0);
    dispatch_bool(whole, [&](auto is_whole) {
      constexpr bool kWhole = decltype(is_whole)::value;
      const T* data = static_cast<const T*>(values);
      if (cols <= kThreads * N)
        row_sums<kWhole, kWarp>
            <<<blocks_for(rows, kThreads / kWarp), kThreads, 0, stream>>>(data, rows, cols, stride, sums, states);
      else if (cols <= 2 * kThreads * N)
        sums_of_rows<kWhole, 4, 2>
            <<<blocks_for(rows, 4), kThreads, 0, stream>>>(data, rows, cols, stride, sums, states);
      else if (cols <= 4 * kThreads * N)
        sums_of_rows<kWhole, 2, 4>
            <<<blocks_for(rows, 2), kThreads, 0, stream>>>(data, rows, cols, stride, sums, states);
      else
        row_sums<kWhole, kThreads>
            <<<blocks_for(rows, 1), kThreads, 0, stream>>>(data, rows, cols, stride, sums, states);
    });
  });
  check_launch("row_square_sums");
}

}  // namespace tessera::ops::cuda
