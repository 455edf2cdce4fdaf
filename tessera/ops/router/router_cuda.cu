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

// The value of an expert or of a group of experts.
template <typename A>
struct Candidate {
  A value;
  int index;
};
// Returns whether `a` is chosen before `b`: by value descending, then by index ascending. NaN is lower than every
// number.
template <typename A>
__device__ __forceinline__ bool precedes(const Candidate<A>& a, const Candidate<A>& b) {
  if (b.value != b.value) return a.value == a.value || a.index < b.index;
  return a.value > b.value || (a.value == b.value && a.index < b.index);
}

// A subset of numbered items, which is distributed over the lanes of a warp. Bit j of a lane is set if item lane + 32 j
// is in the subset.
using LaneItems = std::uint32_t;
static_assert(kMaxDeviceExperts <= kWarp * 32);

// Returns the first of the items `left` by precedes, in every lane. values: [count]. At least one item must be left.
template <typename A>
__device__ __forceinline__ Candidate<A> best_left(const A* values, LaneItems left, int count) {
  Candidate<A> best{std::numeric_limits<A>::quiet_NaN(), count};
  int bit = 0;
  for (int i = threadIdx.x % kWarp; i < count; i += kWarp, ++bit) {
    const Candidate<A> own{values[i], i};
    if ((left >> bit & 1) != 0 && precedes(own, best)) best = own;
  }
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const Candidate<A> other{__shfl_xor_sync(~0u, best.value, distance), __shfl_xor_sync(~0u, best.index, distance)};
    if (precedes(other, best)) best = other;
  }
  return best;
}
__device__ __forceinline__ LaneItems without(LaneItems items, int index) {
  return index % kWarp == threadIdx.x % kWarp ? items & ~(1u << index / kWarp) : items;
}

// Returns the sum of the two largest of `count` values.
template <typename A>
__device__ __forceinline__ A sum_of_two_largest(const A* values, int count) {
  constexpr A kNaN = std::numeric_limits<A>::quiet_NaN();
  Candidate<A> first{kNaN, count}, second{kNaN, count};
  for (int i = 0; i < count; ++i) {
    const Candidate<A> own{values[i], i};
    if (precedes(own, first)) {
      second = first;
      first = own;
    } else if (precedes(own, second)) {
      second = own;
    }
  }
  return first.value + second.value;
}

// Returns the experts of the chosen groups. ranks: [experts]. sums: scratch, [groups].
template <typename A>
__device__ LaneItems experts_of_chosen_groups(const A* ranks, A* sums, int experts, int groups, int chosen) {
  const int lane = threadIdx.x % kWarp, size = experts / groups;
  for (int group = lane; group < groups; group += kWarp) sums[group] = sum_of_two_largest(ranks + group * size, size);
  LaneItems left = ~0u;
  for (int i = 0; i < chosen; ++i) left = without(left, best_left(sums, left, groups).index);
  int bit = 0;
  for (int group = lane; group < groups; group += kWarp, ++bit) sums[group] = (left >> bit & 1) != 0 ? A{0} : A{1};
  __syncwarp();
  LaneItems of_groups = 0;
  bit = 0;
  for (int e = lane; e < experts; e += kWarp, ++bit)
    if (sums[e / size] != 0) of_groups |= 1u << bit;
  return of_groups;
}

// Writes the softmax of a row to `scores` in shared memory. Returns the row's logsumexp.
template <typename A>
__device__ __forceinline__ A softmax(const A* logits, A* scores, int experts) {
  const int lane = threadIdx.x % kWarp;
  // As on a CPU, the maximum is NaN if the first logit is NaN.
  const A first = logits[0];
  A most = first;
  for (int e = lane; e < experts; e += kWarp) most = larger(most, logits[e]);
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) most = larger(most, __shfl_xor_sync(~0u, most, distance));
  if (first != first) most = first;
  for (int e = lane; e < experts; e += kWarp) scores[e] = exponential(logits[e] - most);
  __syncwarp();
  A sum = 0;
  for (int e = 0; e < experts; ++e) sum += scores[e];
  __syncwarp();
  for (int e = lane; e < experts; e += kWarp) scores[e] /= sum;
  return most + log(sum);
}
// Writes the sigmoids of a row to `scores` in shared memory. Returns 0, the logsumexp of sigmoid scores.
template <typename A>
__device__ __forceinline__ A sigmoids(const A* logits, A* scores, int experts) {
  for (int e = threadIdx.x % kWarp; e < experts; e += kWarp) scores[e] = A{1} / (A{1} + exponential(-logits[e]));
  return 0;
}

template <typename A>
struct Route {
  std::int64_t tokens;
  int experts, k, groups, chosen_groups;
  bool is_sigmoid, normalizes;
  A least_sum, scale;
  const A *logits, *bias;
  A *probabilities, *logsumexp;
  std::int32_t* choices;
  A* weights;
};
// Returns the number of elements of shared memory of a warp: the scores, the ranks if there is a bias, and a value for
// each group.
template <typename A>
__host__ __device__ constexpr int route_memory(const Route<A>& a) {
  return (a.bias != nullptr ? 2 : 1) * a.experts + (a.groups > 1 ? a.groups : 0);
}
template <typename A>
__global__ void __launch_bounds__(kWarps* kWarp) choose(const Route<A> a) {
  const std::int64_t token = token_of_warp();
  const int lane = threadIdx.x % kWarp;
  A* const scores = memory_of_warp<A>(route_memory(a));
  if (token >= a.tokens) return;
  const A* logits = a.logits + token * a.experts;
  const A logsumexp = a.is_sigmoid ? sigmoids(logits, scores, a.experts) : softmax(logits, scores, a.experts);
  if (lane == 0) a.logsumexp[token] = logsumexp;
  A* const ranks = a.bias != nullptr ? scores + a.experts : scores;
  bool is_finite = true;
  for (int e = lane; e < a.experts; e += kWarp) {
    const A score = scores[e];
    a.probabilities[token * a.experts + e] = score;
    is_finite = is_finite && score - score == 0;
    if (a.bias != nullptr) ranks[e] = score + a.bias[e];
  }
  const A not_finite = __all_sync(~0u, is_finite) ? A{0} : std::numeric_limits<A>::quiet_NaN();
  __syncwarp();
  LaneItems left = ~0u;
  if (a.groups > 1)
    left = experts_of_chosen_groups(ranks, scores + route_memory(a) - a.groups, a.experts, a.groups, a.chosen_groups);
  A sum = 0;
  for (int slot = 0; slot < a.k; ++slot) {
    const int expert = best_left(ranks, left, a.experts).index;
    left = without(left, expert);
    const A weight = scores[expert] + not_finite;
    sum += weight;
    if (lane == 0) {
      a.choices[token * a.k + slot] = expert;
      a.weights[token * a.k + slot] = weight;
    }
  }
  __syncwarp();
  const A divisor = a.normalizes ? sum + a.least_sum : A{1};
  for (int slot = lane; slot < a.k; slot += kWarp) {
    A& weight = a.weights[token * a.k + slot];
    weight = weight / divisor * a.scale;
  }
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
constexpr int kAhead = 16;  // tokens whose probabilities a thread loads before it adds them

// Sums one chunk. Each thread adds the probabilities of one expert in token order, and the last thread the squares.
template <typename A>
__global__ void __launch_bounds__(kSumThreads) sum_chunk(const Sums<A> a) {
  __shared__ bool counted[kRouterChunk];
  __shared__ A logsumexp[kRouterChunk];
  __shared__ std::int32_t counts[kSumThreads];
  const std::int64_t begin = std::int64_t{blockIdx.x} * kRouterChunk;
  const int tokens = static_cast<int>(min(a.tokens - begin, kRouterChunk));
  const int first = static_cast<int>(blockIdx.y) * kSumThreads, e = first + static_cast<int>(threadIdx.x);
  for (int token = static_cast<int>(threadIdx.x); token < tokens; token += kSumThreads) {
    counted[token] = a.counted[begin + token];
    logsumexp[token] = a.logsumexp[begin + token];
  }
  counts[threadIdx.x] = 0;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < tokens * a.k; i += kSumThreads) {
    const int expert = a.choices[begin * a.k + i] - first;
    if (expert >= 0 && expert < kSumThreads && counted[i / a.k]) atomicAdd(&counts[expert], 1);
  }
  __syncthreads();
  if (e > a.experts) return;
  A sum = 0;
  if (e == a.experts) {
    for (int token = 0; token < tokens; ++token)
      if (counted[token]) sum += logsumexp[token] * logsumexp[token];
  } else {
    const A* const of_expert = a.probabilities + begin * a.experts + e;
    for (int from = 0; from < tokens; from += kAhead) {
      A p[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) p[i] = of_expert[std::int64_t{min(from + i, tokens - 1)} * a.experts];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (from + i < tokens && counted[from + i]) sum += p[i];
    }
    a.chunk_counts[blockIdx.x * std::int64_t{a.experts} + e] = counts[threadIdx.x];
  }
  a.chunk_sums[blockIdx.x * std::int64_t{a.experts + 1} + e] = sum;
}

template <typename A>
__global__ void __launch_bounds__(kSumThreads) sum_chunks(const Sums<A> a) {
  const int e = blockIdx.x * kSumThreads + threadIdx.x;
  if (e > a.experts) return;
  A sum = 0;
  std::int64_t count = 0;
#pragma unroll 8
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
  bool is_sigmoid, normalizes;
  A least_sum, scale;
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
      sum = a.least_sum;
      for (int slot = 0; slot < a.k; ++slot) {
        mean += dweights[slot] * weights[slot];
        sum += p[choices[slot]];
      }
    }
    for (int slot = lane; slot < a.k; slot += kWarp) dp[choices[slot]] += (a.scale * dweights[slot] - mean) / sum;
    __syncwarp();
  }
  if (a.is_sigmoid) {
    for (int e = lane; e < a.experts; e += kWarp) a.dlogits[token * a.experts + e] = dp[e] * p[e] * (A{1} - p[e]);
    return;
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
                      .k = static_cast<int>(a.options.k),
                      .groups = static_cast<int>(a.options.groups),
                      .chosen_groups = static_cast<int>(a.options.chosen_groups),
                      .is_sigmoid = a.options.score == RouterScore::sigmoid,
                      .normalizes = a.options.normalizes,
                      .least_sum = static_cast<A>(a.options.least_sum()),
                      .scale = static_cast<A>(a.options.scale),
                      .logits = static_cast<const A*>(a.logits),
                      .bias = static_cast<const A*>(a.bias),
                      .probabilities = static_cast<A*>(a.probabilities),
                      .logsumexp = static_cast<A*>(a.logsumexp),
                      .choices = a.choices,
                      .weights = static_cast<A*>(a.weights)};
    choose<A><<<blocks_for(a.tokens, kWarps), kWarps * kWarp, bytes_of_warps<A>(route_memory(it)), stream>>>(it);
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
                         .k = static_cast<int>(a.options.k),
                         .is_sigmoid = a.options.score == RouterScore::sigmoid,
                         .normalizes = a.options.normalizes,
                         .least_sum = static_cast<A>(a.options.least_sum()),
                         .scale = static_cast<A>(a.options.scale),
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
