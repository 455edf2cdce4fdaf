// The products of the router. The sums have the CPU's order, so the results have the CPU's bits.
#include "tessera/ops/experts/experts_kernels.h"
#include "tessera/ops/experts/ordered_product.cuh"

namespace tessera::ops::cuda {
namespace {

// Each warp computes the logits of kTokens tokens for kExperts experts. Lane l adds the terms l, l + 32, ...; the lanes
// are then added as a tree (lane_sum).
constexpr int kTokens = 4, kExperts = 8, kWarps = 8;

template <typename T>
__global__ void __launch_bounds__(kWarps* kWarp)
    logits_of(const T* __restrict__ x, const Accumulator<T>* __restrict__ w, Accumulator<T>* __restrict__ logits,
              std::int64_t tokens, std::int64_t experts, std::int64_t hidden) {
  using A = Accumulator<T>;
  const int lane = threadIdx.x % kWarp;
  const std::int64_t first_token = (std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp) * kTokens;
  const std::int64_t first_expert = std::int64_t{blockIdx.y} * kExperts;
  if (first_token >= tokens) return;
  const T* of_token[kTokens];
  const A* of_expert[kExperts];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) of_token[t] = x + min(first_token + t, tokens - 1) * hidden;
#pragma unroll
  for (int e = 0; e < kExperts; ++e) of_expert[e] = w + min(first_expert + e, experts - 1) * hidden;
  A sums[kTokens][kExperts] = {};
#pragma unroll 2
  for (std::int64_t i = lane; i < hidden; i += kWarp) {
    A values[kTokens], factors[kExperts];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) values[t] = load(of_token[t][i]);
#pragma unroll
    for (int e = 0; e < kExperts; ++e) factors[e] = of_expert[e][i];
#pragma unroll
    for (int t = 0; t < kTokens; ++t)
#pragma unroll
      for (int e = 0; e < kExperts; ++e) sums[t][e] += values[t] * factors[e];
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t)
#pragma unroll
    for (int e = 0; e < kExperts; ++e) {
      A sum = sums[t][e];
#pragma unroll
      for (int width = kWarp / 2; width > 0; width /= 2) sum += __shfl_down_sync(~0u, sum, width);
      if (lane == 0 && first_token + t < tokens && first_expert + e < experts)
        logits[(first_token + t) * experts + first_expert + e] = sum;
    }
}

template <int kRows, int kCols, typename A, typename Left, typename Right>
__global__ void __launch_bounds__(kRows* kCols / 16)
    product(StridedMatrix<Left> left, StridedMatrix<Right> right, std::int64_t rows, std::int64_t cols,
            std::int64_t inner, A* result) {
  ordered_product<kRows, kCols, A>(
      left, right, rows, cols, inner, std::int64_t{blockIdx.y} * kRows, std::int64_t{blockIdx.x} * kCols,
      [&](std::int64_t row, std::int64_t col, A value) { result[row * cols + col] = value; });
}

template <int kRows, int kCols, typename A, typename Left, typename Right>
void launch_product(const StridedMatrix<Left>& left, const StridedMatrix<Right>& right, std::int64_t rows,
                    std::int64_t cols, std::int64_t inner, A* result, base::CudaStream stream) {
  if (rows == 0 || cols == 0) return;
  const dim3 grid(blocks_for(cols, kCols), blocks_for(rows, kRows));
  product<kRows, kCols, A><<<grid, kRows * kCols / 16, 0, stream>>>(left, right, rows, cols, inner, result);
}

}  // namespace

void router_logits(const RouterProductArguments& a, base::CudaStream stream) {
  if (a.tokens == 0 || a.experts == 0) return;
  dispatch_floating(a.type, [&](auto element) {
    using T = decltype(element);
    const dim3 grid(blocks_for(a.tokens, kTokens * kWarps), blocks_for(a.experts, kExperts));
    logits_of<T>
        <<<grid, kWarps * kWarp, 0, stream>>>(static_cast<const T*>(a.x), static_cast<const Accumulator<T>*>(a.w),
                                              static_cast<Accumulator<T>*>(a.result), a.tokens, a.experts, a.hidden);
  });
  check_launch("router_logits");
}

void router_dgrad(const RouterProductArguments& a, base::CudaStream stream) {
  dispatch_accumulator(quant::accumulator_of(a.type), [&](auto element) {
    using A = decltype(element);
    // Blocks of one column of tiles share the weights. The grid has at most 65,535 tiles of rows.
    constexpr std::int64_t kMost = std::int64_t{65535} * 64;
    for (std::int64_t token = 0; token < a.tokens; token += kMost)
      launch_product<64, 64>(StridedMatrix<A>{static_cast<const A*>(a.dlogits) + token * a.experts, a.experts, 1},
                             StridedMatrix<A>{static_cast<const A*>(a.w), a.hidden, 1},
                             std::min(kMost, a.tokens - token), a.hidden, a.experts,
                             static_cast<A*>(a.result) + token * a.hidden, stream);
  });
  check_launch("router_dgrad");
}

void router_wgrad(const RouterProductArguments& a, base::CudaStream stream) {
  dispatch_floating(a.type, [&](auto element) {
    using T = decltype(element);
    using A = Accumulator<T>;
    const StridedMatrix<A> left{static_cast<const A*>(a.dlogits), 1, a.experts};
    const StridedMatrix<T> right{static_cast<const T*>(a.x), a.hidden, 1};
    auto* result = static_cast<A*>(a.result);
    if (a.experts <= 8)
      launch_product<8, 64>(left, right, a.experts, a.hidden, a.tokens, result, stream);
    else
      launch_product<32, 32>(left, right, a.experts, a.hidden, a.tokens, result, stream);
  });
  check_launch("router_wgrad");
}

}  // namespace tessera::ops::cuda
