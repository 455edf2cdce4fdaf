// The matrix products of the router. In fp32 and fp64 runs, sums use the same order as on a CPU, so the results have
// the same bits. bf16 runs use tensor cores.
#include "tessera/ops/experts/experts_kernels.h"
#include "tessera/ops/experts/ordered_product.cuh"
#include "tessera/ops/router/router_split.h"

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

template <typename A>
__global__ void __launch_bounds__(kWarps<A>* kWarp)
    logits_of(const A* __restrict__ x, const A* __restrict__ w, A* __restrict__ logits, std::int64_t tokens,
              std::int64_t experts, std::int64_t hidden) {
  __shared__ A parts[kWarps<A>][kWarp][kWarp + 1];
  const int lane = threadIdx.x % kWarp;
  A(&own)[kWarp][kWarp + 1] = parts[threadIdx.x / kWarp];
  const std::int64_t first_token = (std::int64_t{blockIdx.x} * kWarps<A> + threadIdx.x / kWarp) * kTokens;
  const std::int64_t first_expert = std::int64_t{blockIdx.y} * kExperts;
  if (first_token >= tokens) return;
  const A* of_token[kTokens];
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
    for (int t = 0; t < kTokens; ++t) values[t] = of_token[t][i];
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

// Writes the product, or the sum of the product and `addend`.
template <int kRows, int kCols, bool kAdds, typename A>
__global__ void __launch_bounds__(kRows* kCols / 16)
    product(StridedMatrix<A> left, StridedMatrix<A> right, std::int64_t rows, std::int64_t cols, std::int64_t inner,
            const A* __restrict__ addend, A* __restrict__ result) {
  ordered_product<kRows, kCols, A>(left, right, rows, cols, inner, std::int64_t{blockIdx.y} * kRows,
                                   std::int64_t{blockIdx.x} * kCols, [&](std::int64_t row, std::int64_t col, A value) {
                                     if constexpr (kAdds) value = addend[row * cols + col] + value;
                                     result[row * cols + col] = value;
                                   });
}

// Computes dlogits^T x of the tokens of a chunk for at most kFewExperts experts. blockIdx.y is the chunk. Each thread
// adds the tokens of one column for all experts.
constexpr int kFewExperts = 8, kFewThreads = 32, kFewTokens = 64;
template <typename A>
__global__ void __launch_bounds__(kFewThreads)
    gradient_of_few(const A* __restrict__ dlogits, const A* __restrict__ x, A* __restrict__ parts, std::int64_t tokens,
                    int experts, std::int64_t hidden) {
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
    const A* from = x + begin * hidden + col;
#pragma unroll 16
    for (int token = 0; token < count; ++token) {
      const A value = from[token * hidden];
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
template <typename A>
__global__ void __launch_bounds__(kGradientTile* kGradientTile / 16)
    gradient_of_chunk(const A* __restrict__ dlogits, const A* __restrict__ x, A* __restrict__ parts,
                      std::int64_t tokens, std::int64_t experts, std::int64_t hidden) {
  const std::int64_t first = std::int64_t{blockIdx.z} * kRouterGradientChunk;
  A* const part = parts + std::int64_t{blockIdx.z} * experts * hidden;
  ordered_product<kGradientTile, kGradientTile, A>(
      StridedMatrix<A>{dlogits + first * experts, 1, experts}, StridedMatrix<A>{x + first * hidden, hidden, 1}, experts,
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

// Computes dlogits w, and adds `addend` if kAdds is true.
template <bool kAdds, typename A>
void launch_dgrad(const RouterProductArguments& a, base::CudaStream stream) {
  constexpr int kTile = 64;
  // Largest number of tokens of a launch; the number of tiles in a grid limits it.
  constexpr std::int64_t kMost = std::int64_t{65535} * kTile;
  for (std::int64_t token = 0; token < a.tokens; token += kMost) {
    const StridedMatrix<A> left{static_cast<const A*>(a.dlogits) + token * a.experts, a.experts, 1};
    const StridedMatrix<A> right{static_cast<const A*>(a.w), a.hidden, 1};
    const std::int64_t rows = std::min(kMost, a.tokens - token);
    product<kTile, kTile, kAdds>
        <<<dim3(blocks_for(a.hidden, kTile), blocks_for(rows, kTile)), kTile * kTile / 16, 0, stream>>>(
            left, right, rows, a.hidden, a.experts,
            kAdds ? static_cast<const A*>(a.addend) + token * a.hidden : nullptr,
            static_cast<A*>(a.result) + token * a.hidden);
  }
}

}  // namespace

std::int64_t router_scratch(const RouterProductArguments& a) {
  return a.type == quant::DType::bf16 ? split_scratch(a) : 0;
}

void router_logits(const RouterProductArguments& a, base::CudaStream stream) {
  if (a.tokens == 0 || a.experts == 0) return;
  if (a.type == quant::DType::bf16)
    split_logits(a, stream);
  else
    dispatch_accumulator(a.type, [&](auto element) {
      using A = decltype(element);
      const dim3 grid(blocks_for(a.tokens, kTokens * kWarps<A>), blocks_for(a.experts, kExperts));
      logits_of<<<grid, kWarps<A> * kWarp, 0, stream>>>(static_cast<const A*>(a.x), static_cast<const A*>(a.w),
                                                        static_cast<A*>(a.result), a.tokens, a.experts, a.hidden);
    });
  check_launch("router_logits");
}

void router_dgrad(const RouterProductArguments& a, base::CudaStream stream) {
  if (a.tokens == 0 || a.hidden == 0) return;
  if (a.type == quant::DType::bf16 && a.addend != nullptr)
    split_dgrad(a, stream);
  else
    dispatch_accumulator(quant::accumulator_of(a.type), [&](auto element) {
      using A = decltype(element);
      if (a.addend != nullptr)
        launch_dgrad<true, A>(a, stream);
      else
        launch_dgrad<false, A>(a, stream);
    });
  check_launch("router_dgrad");
}

void router_wgrad(const RouterProductArguments& a, base::CudaStream stream) {
  const std::int64_t count = a.experts * a.hidden, chunks = ceil_div(a.tokens, kRouterGradientChunk);
  if (count == 0) return;
  dispatch_accumulator(quant::accumulator_of(a.type), [&](auto element) {
    using A = decltype(element);
    const auto* dlogits = static_cast<const A*>(a.dlogits);
    const auto* x = static_cast<const A*>(a.x);
    auto* parts = static_cast<A*>(a.parts);
    if (chunks > 0 && a.type == quant::DType::bf16)
      split_wgrad(a, kRouterGradientChunk, stream);
    else if (chunks > 0 && a.experts <= kFewExperts)
      gradient_of_few<<<dim3(blocks_for(a.hidden, kFewThreads), static_cast<unsigned>(chunks)), kFewThreads, 0,
                        stream>>>(dlogits, x, parts, a.tokens, static_cast<int>(a.experts), a.hidden);
    else if (chunks > 0)
      gradient_of_chunk<<<dim3(blocks_for(a.hidden, kGradientTile), blocks_for(a.experts, kGradientTile),
                               static_cast<unsigned>(chunks)),
                          kGradientTile * kGradientTile / 16, 0, stream>>>(dlogits, x, parts, a.tokens, a.experts,
                                                                           a.hidden);
    add_chunks<<<blocks_for(count, kAddThreads), kAddThreads, 0, stream>>>(parts, chunks, count,
                                                                           static_cast<A*>(a.result));
  });
  check_launch("router_wgrad");
}

}  // namespace tessera::ops::cuda
