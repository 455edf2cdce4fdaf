#include "tessera/ops/initialise/normal_stream.h"
#include "tessera/ops/packs.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = 256, kSteps = 4;  // elements or packs per thread
constexpr std::int64_t kMaxRows = 65535;   // largest number of rows of a launch

template <typename T>
struct Part {
  T* data;
  double standard_deviation;
  std::int64_t first, logical_cols, rows, cols, stride;  // first: logical index of (0, 0)
};

template <typename T>
__global__ void __launch_bounds__(kThreads) fill_rows(const Part<T> part, const NormalStream stream) {
  const std::int64_t col = std::int64_t{blockIdx.x} * kSteps * kThreads + threadIdx.x;
  for (std::int64_t row = blockIdx.y; row < part.rows; row += gridDim.y) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const std::int64_t c = col + i * kThreads;
      if (c >= part.cols) break;
      const auto index = static_cast<std::uint64_t>(part.first + row * part.logical_cols + c);
      part.data[row * part.stride + c] =
          round_to<T>(part.standard_deviation * normal_quantile(open_uniform(stream.bits(index))));
    }
  }
}

template <bool kAligned, typename T>
__global__ void __launch_bounds__(kThreads) fill_range(T* data, std::int64_t count, double value) {
  constexpr int N = kPack<T>;
  double values[N];
#pragma unroll
  for (int k = 0; k < N; ++k) values[k] = value;
  const std::int64_t start = (std::int64_t{blockIdx.x} * kSteps * kThreads + threadIdx.x) * N;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) store_flat<kAligned>(data, start + i * kThreads * N, count, rounded<T>(values));
}

}  // namespace

void fill_normal(const NormalFill& fill, void* data, quant::DType type, base::CudaStream stream) {
  check_fill(fill);
  dispatch_floating(type, [&](auto element) {
    using T = decltype(element);
    if (fill.rows == 0 || fill.cols == 0) return;
    const Part<T> part{.data = static_cast<T*>(data),
                       .standard_deviation = fill.standard_deviation,
                       .first = fill.row * fill.logical_cols + fill.col,
                       .logical_cols = fill.logical_cols,
                       .rows = fill.rows,
                       .cols = fill.cols,
                       .stride = fill.stride};
    const dim3 grid(blocks_for(fill.cols, kThreads * kSteps), static_cast<unsigned>(std::min(fill.rows, kMaxRows)));
    fill_rows<<<grid, kThreads, 0, stream>>>(part, NormalStream(fill));
  });
  check_launch("fill_normal");
}

void fill_constant(double value, void* data, quant::DType type, std::int64_t count, base::CudaStream stream) {
  dispatch_floating(type, [&](auto element) {
    using T = decltype(element);
    if (count == 0) return;
    dispatch_bool(is_aligned(data, kAccessBytes), [&](auto aligned) {
      fill_range<decltype(aligned)::value><<<blocks_for(count, kThreads * kSteps * kPack<T>), kThreads, 0, stream>>>(
          static_cast<T*>(data), count, value);
    });
  });
  check_launch("fill_constant");
}

}  // namespace tessera::ops::cuda
