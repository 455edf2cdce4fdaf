// The choices of the router, its sums and its gradient. Each warp processes one token. Sums over experts and over
// tokens use the same order as on a CPU.
#include "tessera/ops/experts/experts_kernels.h"
#include "tessera/ops/exponential.h"
#include "tessera/ops/packs.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kWarps = 2;  // tokens of a thread block; shared memory for 1,023 experts in fp64 limits the number

// Returns the shared memory of this warp: `count` elements of dynamic shared memory.
template <typename A>
__device__ __forceinline__ A* memory_of_warp(std::int64_t count) {
  extern __shared__ double memory[];
  return reinterpret_cast<A*>(memory) + threadIdx.x / kWarp * count;
}
__device__ __forceinline__ std::int64_t token_of_warp() {
  return std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
}

// Returns the larger of two logits. The first logit has the lower index. NaN is treated as the lowest value.
template <typename A>
__device__ __forceinline__ A larger(A a, A b) {
  return b > a || a != a ? b : a;
}

template <typename A>
struct Best {
  A value;
  int expert;
};
// Returns the best expert of all lanes: the expert with the largest value, and among equal values the lowest index.
// Each lane passes the best of its own experts.
template <typename A>
__device__ __forceinline__ Best<A> best_of_warp(Best<A> best) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const Best<A> other{__shfl_xor_sync(~0u, best.value, distance), __shfl_xor_sync(~0u, best.expert, distance)};
    if (other.value > best.value || (other.value == best.value && other.expert < best.expert)) best = other;
  }
  return best;
}

template <typename A>
struct Route {
  std::int64_t tokens;
  int experts, k;
  bool normalizes;
  const A* logits;
  A *probabilities, *logsumexp;
  std::int32_t* choices;
  A* weights;
};
template <typename A>
__global__ void __launch_bounds__(kWarps* kWarp) choose(const Route<A> a) {
  const std::int64_t token = token_of_warp();
  const int lane = threadIdx.x % kWarp;
  A* p = memory_of_warp<A>(a.experts);
  if (token >= a.tokens) return;
  const A* logits = a.logits + token * a.experts;
  // As on a CPU, the maximum is NaN if the first logit is NaN.
  const A first = logits[0];
  A most = first;
  for (int e = lane; e < a.experts; e += kWarp) most = larger(most, logits[e]);
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) most = larger(most, __shfl_xor_sync(~0u, most, distance));
  if (first != first) most = first;
  for (int e = lane; e < a.experts; e += kWarp) p[e] = exponential(logits[e] - most);
  __syncwarp();
  A sum = 0;
  for (int e = 0; e < a.experts; ++e) sum += p[e];
  __syncwarp();
  for (int e = lane; e < a.experts; e += kWarp) a.probabilities[token * a.experts + e] = p[e] /= sum;
  if (lane == 0) a.logsumexp[token] = most + log(sum);
  __syncwarp();

  // Probabilities are at least 0. A chosen expert is marked with -2. NaN is replaced by -1, so that the choices are
  // distinct.
  constexpr A kTaken = -2, kNaN = -1;
  A total = 0;
  for (int slot = 0; slot < a.k; ++slot) {
    Best<A> best{kTaken, a.experts};
    for (int e = lane; e < a.experts; e += kWarp) {
      const A value = p[e] != p[e] ? kNaN : p[e];
      if (value > best.value) best = {value, e};
    }
    best = best_of_warp(best);
    const A weight = p[best.expert];
    total += weight;
    __syncwarp();
    if (lane == 0) {
      a.choices[token * a.k + slot] = best.expert;
      a.weights[token * a.k + slot] = weight;
      p[best.expert] = kTaken;
    }
    __syncwarp();
  }
  if (!a.normalizes) return;
  for (int slot = lane; slot < a.k; slot += kWarp) a.weights[token * a.k + slot] /= total;
}

template <typename A>
struct Sums {
  std::int64_t tokens, chunks;
  int experts, k;
  const A *probabilities, *logsumexp;
  const std::int32_t* choices;
  const bool* counted;
  A* chunk_sums;  // [chunks, experts + 1]; the last column contains the sum of squares
  std::int32_t* chunk_counts;
  std::int64_t* counts;
  A *sums, *squares;
};

constexpr int kSumThreads = 128;

// Sums one chunk. Each thread adds the probabilities of one expert in token order.
template <typename A>
__global__ void __launch_bounds__(kSumThreads) sum_chunk(const Sums<A> a) {
  const std::int64_t begin = std::int64_t{blockIdx.x} * kRouterChunk, end = min(a.tokens, begin + kRouterChunk);
  const int e = blockIdx.y * kSumThreads + threadIdx.x;
  if (e > a.experts) return;
  A sum = 0;
  if (e == a.experts) {
    for (std::int64_t token = begin; token < end; ++token)
      if (a.counted[token]) sum += a.logsumexp[token] * a.logsumexp[token];
  } else {
    std::int32_t count = 0;
#pragma unroll 4
    for (std::int64_t token = begin; token < end; ++token) {
      const A p = a.probabilities[token * a.experts + e];
      if (!a.counted[token]) continue;
      sum += p;
      for (int slot = 0; slot < a.k; ++slot) count += a.choices[token * a.k + slot] == e;
    }
    a.chunk_counts[blockIdx.x * std::int64_t{a.experts} + e] = count;
  }
  a.chunk_sums[blockIdx.x * std::int64_t{a.experts + 1} + e] = sum;
}

template <typename A>
__global__ void __launch_bounds__(kSumThreads) sum_chunks(const Sums<A> a) {
  const int e = blockIdx.x * kSumThreads + threadIdx.x;
  if (e > a.experts) return;
  A sum = 0;
  std::int64_t count = 0;
  for (std::int64_t chunk = 0; chunk < a.chunks; ++chunk) {
    sum += a.chunk_sums[chunk * (a.experts + 1) + e];
    if (e < a.experts) count += a.chunk_counts[chunk * a.experts + e];
  }
  if (e == a.experts) {
    a.squares[0] = sum;
    return;
  }
  a.sums[e] = sum;
  a.counts[e] = count;
}

template <typename A>
struct Backward {
  std::int64_t tokens;
  int experts, k;
  bool normalizes;
  const A *probabilities, *logsumexp;
  const std::int32_t* choices;
  const A* weights;
  const bool* counted;
  const A *dweights, *dprobabilities, *dsquares;
  A* dlogits;
};
template <typename A>
__global__ void __launch_bounds__(kWarps* kWarp) logit_gradients(const Backward<A> a) {
  const std::int64_t token = token_of_warp();
  const int lane = threadIdx.x % kWarp;
  A* dp = memory_of_warp<A>(2 * a.experts);
  A* products = dp + a.experts;
  if (token >= a.tokens) return;
  const A* p = a.probabilities + token * a.experts;
  const std::int32_t* choices = a.choices + token * a.k;
  const bool counts = a.counted[token];
  for (int e = lane; e < a.experts; e += kWarp)
    dp[e] = counts && a.dprobabilities != nullptr ? a.dprobabilities[e] : A{0};
  const A dlogsumexp = counts && a.dsquares != nullptr ? 2 * a.logsumexp[token] * a.dsquares[0] : A{0};
  __syncwarp();
  if (a.dweights != nullptr) {
    const A *weights = a.weights + token * a.k, *dweights = a.dweights + token * a.k;
    A mean = 0, sum = 1;
    if (a.normalizes) {
      sum = 0;
      for (int slot = 0; slot < a.k; ++slot) {
        mean += dweights[slot] * weights[slot];
        sum += p[choices[slot]];
      }
    }
    for (int slot = lane; slot < a.k; slot += kWarp) dp[choices[slot]] += (dweights[slot] - mean) / sum;
    __syncwarp();
  }
  for (int e = lane; e < a.experts; e += kWarp) products[e] = p[e] * dp[e];
  __syncwarp();
  A inner = 0;
  for (int e = 0; e < a.experts; ++e) inner += products[e];
  for (int e = lane; e < a.experts; e += kWarp)
    a.dlogits[token * a.experts + e] = p[e] * (dp[e] - inner) + dlogsumexp * p[e];
}

template <typename A>
std::size_t bytes_of_warps(std::int64_t elements) {
  return static_cast<std::size_t>(kWarps * elements) * sizeof(A);
}

}  // namespace

void route(const RouteArguments& a, base::CudaStream stream) {
  if (a.tokens == 0) return;
  dispatch_accumulator(a.type, [&](auto element) {
    using A = decltype(element);
    const Route<A> it{.tokens = a.tokens,
                      .experts = static_cast<int>(a.experts),
                      .k = static_cast<int>(a.k),
                      .normalizes = a.normalizes,
                      .logits = static_cast<const A*>(a.logits),
                      .probabilities = static_cast<A*>(a.probabilities),
                      .logsumexp = static_cast<A*>(a.logsumexp),
                      .choices = a.choices,
                      .weights = static_cast<A*>(a.weights)};
    choose<A><<<blocks_for(a.tokens, kWarps), kWarps * kWarp, bytes_of_warps<A>(a.experts), stream>>>(it);
  });
  check_launch("route");
}

void router_sums(const RouterSumsArguments& a, base::CudaStream stream) {
  dispatch_accumulator(a.type, [&](auto element) {
    using A = decltype(element);
    const Sums<A> it{.tokens = a.tokens,
                     .chunks = ceil_div(a.tokens, kRouterChunk),
                     .experts = static_cast<int>(a.experts),
                     .k = static_cast<int>(a.k),
                     .probabilities = static_cast<const A*>(a.probabilities),
                     .logsumexp = static_cast<const A*>(a.logsumexp),
                     .choices = a.choices,
                     .counted = a.counted,
                     .chunk_sums = static_cast<A*>(a.chunk_sums),
                     .chunk_counts = a.chunk_counts,
                     .counts = a.counts,
                     .sums = static_cast<A*>(a.sums),
                     .squares = static_cast<A*>(a.squares)};
    const unsigned blocks = blocks_for(a.experts + 1, kSumThreads);
    if (it.chunks > 0) sum_chunk<A><<<dim3(static_cast<unsigned>(it.chunks), blocks), kSumThreads, 0, stream>>>(it);
    sum_chunks<A><<<blocks, kSumThreads, 0, stream>>>(it);
  });
  check_launch("router_sums");
}

void route_backward(const RouteBackwardArguments& a, base::CudaStream stream) {
  if (a.tokens == 0) return;
  dispatch_accumulator(a.type, [&](auto element) {
    using A = decltype(element);
    const Backward<A> it{.tokens = a.tokens,
                         .experts = static_cast<int>(a.experts),
                         .k = static_cast<int>(a.k),
                         .normalizes = a.normalizes,
                         .probabilities = static_cast<const A*>(a.probabilities),
                         .logsumexp = static_cast<const A*>(a.logsumexp),
                         .choices = a.choices,
                         .weights = static_cast<const A*>(a.weights),
                         .counted = a.counted,
                         .dweights = static_cast<const A*>(a.dweights),
                         .dprobabilities = static_cast<const A*>(a.dprobabilities),
                         .dsquares = static_cast<const A*>(a.dsquares),
                         .dlogits = static_cast<A*>(a.dlogits)};
    logit_gradients<A><<<blocks_for(a.tokens, kWarps), kWarps * kWarp, bytes_of_warps<A>(2 * a.experts), stream>>>(it);
  });
  check_launch("route_backward");
}

}  // namespace tessera::ops::cuda
