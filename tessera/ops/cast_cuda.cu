#include "tessera/ops/cast.h"
#include "tessera/ops/packs.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = 256, kSteps = 4;  // packs a thread

template <bool kAligned, typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    cast_range(const From* __restrict__ from, To* __restrict__ to, std::int64_t count) {
  constexpr int N = kAccessBytes / (sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To));
  const std::int64_t start = (std::int64_t{blockIdx.x} * kSteps * kThreads + threadIdx.x) * N;
  Pack<From, N> packs[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) packs[i] = load_flat<kAligned, N>(from, start + i * kThreads * N, count);
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    Accumulator<From> values[N];
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] = packs[i][k];
    store_flat<kAligned>(to, start + i * kThreads * N, count, rounded<To>(values));
  }
}

template <bool kAligned, typename A>
__global__ void __launch_bounds__(kThreads)
    add_range(A* __restrict__ sum, const A* __restrict__ term, std::int64_t count) {
  constexpr int N = kPack<A>;
  const std::int64_t start = (std::int64_t{blockIdx.x} * kSteps * kThreads + threadIdx.x) * N;
  Pack<A, N> sums[kSteps], terms[kSteps];
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    sums[i] = load_flat<kAligned, N>(sum, start + i * kThreads * N, count);
    terms[i] = load_flat<kAligned, N>(term, start + i * kThreads * N, count);
  }
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
#pragma unroll
    for (int k = 0; k < N; ++k) sums[i].set(k, sums[i][k] + terms[i][k]);
    store_flat<kAligned>(sum, start + i * kThreads * N, count, sums[i]);
  }
}

}  // namespace

void cast(const void* from, quant::DType from_type, void* to, quant::DType to_type, std::int64_t count,
          base::CudaStream stream) {
  if (count == 0) return;
  if (from_type == to_type) {
    const std::size_t bytes = static_cast<std::size_t>(count) * quant::size_of(to_type);
    base::check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "cast");
    return;
  }
  dispatch_floating(from_type, [&](auto source) {
    dispatch_floating(to_type, [&](auto target) {
      using From = decltype(source);
      using To = decltype(target);
      if constexpr (!std::is_same_v<From, To>) {
        constexpr int N = kAccessBytes / static_cast<int>(std::max(sizeof(From), sizeof(To)));
        dispatch_bool(is_aligned(from, N * sizeof(From)) && is_aligned(to, N * sizeof(To)), [&](auto aligned) {
          cast_range<decltype(aligned)::value><<<blocks_for(count, kThreads * kSteps * N), kThreads, 0, stream>>>(
              static_cast<const From*>(from), static_cast<To*>(to), count);
        });
      }
    });
  });
  check_launch("cast");
}

void add(void* sum, const void* term, quant::DType type, std::int64_t count, base::CudaStream stream) {
  if (count == 0) return;
  dispatch_accumulator(type, [&](auto element) {
    using A = decltype(element);
    dispatch_bool(is_aligned(sum) && is_aligned(term), [&](auto aligned) {
      add_range<decltype(aligned)::value><<<blocks_for(count, kThreads * kSteps * kPack<A>), kThreads, 0, stream>>>(
          static_cast<A*>(sum), static_cast<const A*>(term), count);
    });
  });
  check_launch("add");
}

}  // namespace tessera::ops::cuda
