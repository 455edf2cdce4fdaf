// The matrix products of the router. Sums use the same order as on a CPU, so the results have the same bits.
#include "tessera/ops/experts/experts_kernels.h"
#include "tessera/ops/experts/ordered_product.cuh"

namespace tessera::ops::cuda {
namespace {

// Each warp computes the logits of kTokens tokens for kExperts experts. Lane l adds the terms l, l + 32, and so on. The
// lanes are then added as a tree (lane_sum). One thread adds the lanes of one logit.
constexpr int kTokens = 4, kExperts = 8;
static_assert(kTokens * kExperts == kWarp);
template <typename A>
constexpr int kWarps = 32 / sizeof(A);  // limited by shared memory

// Adds all elements to the first element. Indices are compile-time constants, so the elements stay in registers.
template <int kWidth, typename A>
__device__ __forceinline__ void add_as_tree(A (&lanes)[kWarp]) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) lanes[i] += lanes[i + kWidth];
  if constexpr (kWidth > 1) add_as_tree<kWidth / 2>(lanes);
}

template <typename T>
__global__ void __launch_bounds__(kWarps<Accumulator<T>>* kWarp)
    logits_of(const T* __restrict__ x, const Accumulator<T>* __restrict__ w, Accumulator<T>* __restrict__ logits,
              std::int64_t tokens, std::int64_t experts, std::int64_t hidden) {
  using A = Accumulator<T>;
  __shared__ A parts[kWarps<A>][kWarp][kWarp + 1];
  const int lane = threadIdx.x % kWarp;
  A(&own)[kWarp][kWarp + 1] = parts[threadIdx.x / kWarp];
  const std::int64_t first_token = (std::int64_t{blockIdx.x} * kWarps<A> + threadIdx.x / kWarp) * kTokens;
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
    for (int e = 0; e < kExperts; ++e) own[t * kExperts + e][lane] = sums[t][e];
  __syncwarp();
  A lanes[kWarp];
#pragma unroll
  for (int i = 0; i < kWarp; ++i) lanes[i] = own[lane][i];
  add_as_tree<kWarp / 2>(lanes);
  const std::int64_t token = first_token + lane / kExperts, expert = first_expert + lane % kExperts;
  if (token < tokens && expert < experts) logits[token * experts + expert] = lanes[0];
}

// Writes the product, or the sum of the product and `addend`. The result is rounded to T.
template <int kRows, int kCols, bool kAdds, typename T, typename A, typename Left, typename Right>
__global__ void __launch_bounds__(kRows* kCols / 16)
    product(StridedMatrix<Left> left, StridedMatrix<Right> right, std::int64_t rows, std::int64_t cols,
            std::int64_t inner, const T* __restrict__ addend, T* __restrict__ result, A) {
  ordered_product<kRows, kCols, A>(left, right, rows, cols, inner, std::int64_t{blockIdx.y} * kRows,
                                   std::int64_t{blockIdx.x} * kCols, [&](std::int64_t row, std::int64_t col, A value) {
                                     if constexpr (kAdds) value = load(addend[row * cols + col]) + value;
                                     result[row * cols + col] = round_to<T>(value);
                                   });
}

template <int kRows, int kCols, bool kAdds, typename T, typename Left, typename Right>
void launch_product(const StridedMatrix<Left>& left, const StridedMatrix<Right>& right, std::int64_t rows,
                    std::int64_t cols, std::int64_t inner, const T* addend, T* result, base::CudaStream stream) {
  if (rows == 0 || cols == 0) return;
  const dim3 grid(blocks_for(cols, kCols), blocks_for(rows, kRows));
  product<kRows, kCols, kAdds>
      <<<grid, kRows * kCols / 16, 0, stream>>>(left, right, rows, cols, inner, addend, result, Accumulator<Right>{});
}

// Computes dlogits^T x of the tokens of a chunk for at most kFewExperts experts. blockIdx.y is the chunk. Each thread
// adds the tokens of one column for all experts.
constexpr int kFewExperts = 8, kFewThreads = 32, kFewTokens = 64;
template <typename T>
__global__ void __launch_bounds__(kFewThreads)
    gradient_of_few(const Accumulator<T>* __restrict__ dlogits, const T* __restrict__ x,
                    Accumulator<T>* __restrict__ parts, std::int64_t tokens, int experts, std::int64_t hidden) {
  using A = Accumulator<T>;
  __shared__ A factors[kFewTokens][kFewExperts];
  const std::int64_t col = std::int64_t{blockIdx.x} * kFewThreads + threadIdx.x;
  A sums[kFewExperts] = {};
  const std::int64_t first = std::int64_t{blockIdx.y} * kRouterGradientChunk;
  const std::int64_t end = min(first + kRouterGradientChunk, tokens);
  for (std::int64_t begin = first; begin < end; begin += kFewTokens) {
    const int count = static_cast<int>(min(std::int64_t{kFewTokens}, end - begin));
    __syncthreads();
    for (int i = threadIdx.x; i < count * kFewExperts; i += kFewThreads) {
      const int token = i / kFewExperts, e = i % kFewExperts;
      factors[token][e] = e < experts ? dlogits[(begin + token) * experts + e] : A{0};
    }
    __syncthreads();
    if (col >= hidden) continue;
    const T* from = x + begin * hidden + col;
#pragma unroll 16
    for (int token = 0; token < count; ++token) {
      const A value = load(from[token * hidden]);
#pragma unroll
      for (int e = 0; e < kFewExperts; ++e) sums[e] += factors[token][e] * value;
    }
  }
  if (col >= hidden) return;
#pragma unroll
  for (int e = 0; e < kFewExperts; ++e)
    if (e < experts) parts[(std::int64_t{blockIdx.y} * experts + e) * hidden + col] = sums[e];
}

// Computes one tile of dlogits^T x of the tokens of a chunk. blockIdx.z is the chunk.
constexpr int kGradientTile = 64;
template <typename T>
__global__ void __launch_bounds__(kGradientTile* kGradientTile / 16)
    gradient_of_chunk(const Accumulator<T>* __restrict__ dlogits, const T* __restrict__ x,
                      Accumulator<T>* __restrict__ parts, std::int64_t tokens, std::int64_t experts,
                      std::int64_t hidden) {
  using A = Accumulator<T>;
  const std::int64_t first = std::int64_t{blockIdx.z} * kRouterGradientChunk;
  A* const part = parts + std::int64_t{blockIdx.z} * experts * hidden;
  ordered_product<kGradientTile, kGradientTile, A>(
      StridedMatrix<A>{dlogits + first * experts, 1, experts}, StridedMatrix<T>{x + first * hidden, hidden, 1}, experts,
      hidden, min(kRouterGradientChunk, tokens - first), std::int64_t{blockIdx.y} * kGradientTile,
      std::int64_t{blockIdx.x} * kGradientTile,
      [&](std::int64_t expert, std::int64_t col, A value) { part[expert * hidden + col] = value; });
}

// Adds the parts of the chunks in order.
constexpr int kAddThreads = 256;
template <typename A>
__global__ void __launch_bounds__(kAddThreads)
    add_chunks(const A* __restrict__ parts, std::int64_t chunks, std::int64_t count, A* __restrict__ result) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kAddThreads + threadIdx.x;
  if (i >= count) return;
  A sum{0};
#pragma unroll 8
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) sum += parts[chunk * count + i];
  result[i] = sum;
}

// Computes dlogits w, and adds `addend` if kAdds is true. T is the type of the result.
template <bool kAdds, typename T>
void launch_dgrad(const RouterProductArguments& a, base::CudaStream stream) {
  using A = Accumulator<T>;
  // Largest number of tokens of a launch; the number of tiles in a grid limits it.
  constexpr std::int64_t kMost = std::int64_t{65535} * 64;
  for (std::int64_t token = 0; token < a.tokens; token += kMost) {
    const StridedMatrix<A> left{static_cast<const A*>(a.dlogits) + token * a.experts, a.experts, 1};
    const StridedMatrix<A> right{static_cast<const A*>(a.w), a.hidden, 1};
    launch_product<64, 64, kAdds>(left, right, std::min(kMost, a.tokens - token), a.hidden, a.experts,
                                  kAdds ? static_cast<const T*>(a.addend) + token * a.hidden : nullptr,
                                  static_cast<T*>(a.result) + token * a.hidden, stream);
  }
}

}  // namespace

void router_logits(const RouterProductArguments& a, base::CudaStream stream) {
  if (a.tokens == 0 || a.experts == 0) return;
  dispatch_floating(a.type, [&](auto element) {
    using T = decltype(element);
    using A = Accumulator<T>;
    const dim3 grid(blocks_for(a.tokens, kTokens * kWarps<A>), blocks_for(a.experts, kExperts));
    logits_of<T><<<grid, kWarps<A> * kWarp, 0, stream>>>(static_cast<const T*>(a.x), static_cast<const A*>(a.w),
                                                         static_cast<A*>(a.result), a.tokens, a.experts, a.hidden);
  });
  check_launch("router_logits");
}

void router_dgrad(const RouterProductArguments& a, base::CudaStream stream) {
  if (a.addend != nullptr)
    dispatch_floating(a.type, [&](auto element) { launch_dgrad<true, decltype(element)>(a, stream); });
  else
    dispatch_accumulator(quant::accumulator_of(a.type),
                         [&](auto element) { launch_dgrad<false, decltype(element)>(a, stream); });
  check_launch("router_dgrad");
}

void router_wgrad(const RouterProductArguments& a, base::CudaStream stream) {
  const std::int64_t count = a.experts * a.hidden, chunks = ceil_div(a.tokens, kRouterGradientChunk);
  if (count == 0) return;
  dispatch_floating(a.type, [&](auto element) {
    using T = decltype(element);
    using A = Accumulator<T>;
    const auto* dlogits = static_cast<const A*>(a.dlogits);
    const auto* x = static_cast<const T*>(a.x);
    auto* parts = static_cast<A*>(a.parts);
    if (chunks > 0 && a.experts <= kFewExperts)
      gradient_of_few<T>
          <<<dim3(blocks_for(a.hidden, kFewThreads), static_cast<unsigned>(chunks)), kFewThreads, 0, stream>>>(
              dlogits, x, parts, a.tokens, static_cast<int>(a.experts), a.hidden);
    else if (chunks > 0)
      gradient_of_chunk<T>
          <<<dim3(blocks_for(a.hidden, kGradientTile), blocks_for(a.experts, kGradientTile),
                  static_cast<unsigned>(chunks)),
             kGradientTile * kGradientTile / 16, 0, stream>>>(dlogits, x, parts, a.tokens, a.experts, a.hidden);
    add_chunks<<<blocks_for(count, kAddThreads), kAddThreads, 0, stream>>>(parts, chunks, count,
                                                                           static_cast<A*>(a.result));
  });
  check_launch("router_wgrad");
}

}  // namespace tessera::ops::cuda
