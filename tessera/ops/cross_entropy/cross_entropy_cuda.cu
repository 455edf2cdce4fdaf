// Each phase uses one block per row. The order of sums and maxima over a row depends only on the size of the
// vocabulary.
#include "tessera/ops/cross_entropy/cross_entropy_kernels.h"
#include "tessera/ops/packs.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = 512, kSteps = 4;  // packs of a thread that are loaded together
constexpr int kChunk = 1024;               // terms of a chunk in sum_in_order

template <typename A>
__device__ __forceinline__ A larger(A a, A b) {  // if one of the numbers is NaN, returns NaN
  if constexpr (std::is_same_v<A, float>) {
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(a) : "f"(a), "f"(b));
    return a;
  } else {
    return b > a || b != b ? b : a;
  }
}

// exp with the special function unit, with an error of a few units in the last place. Results below the smallest normal
// number are 0.
__device__ __forceinline__ float quick_exponential(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * 0x1.715476p0f));
  return power;
}
__device__ __forceinline__ double quick_exponential(double x) {
  return exp(x);
}

// Calls use(values) for this thread's packs of the row, in order. Values beyond the end are `rest`.
template <bool kWhole, typename T, typename Use>
__device__ __forceinline__ void each_pack(const T* row, std::int64_t count, Accumulator<T> rest, Use use) {
  constexpr int N = kPack<T>;
  const int step = blockDim.x * N;
  for (std::int64_t start = threadIdx.x * N; start < count; start += kSteps * step) {
    Pack<T, N> packs[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) packs[i] = load_pack<kWhole, N>(row, start + i * step, count);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const std::int64_t first = start + i * step;
      if (first >= count) break;
      Accumulator<T> values[N];
#pragma unroll
      for (int k = 0; k < N; ++k) values[k] = kWhole || first + k < count ? packs[i][k] : rest;
      use(values);
    }
  }
}

template <typename A, int N>
__device__ __forceinline__ A largest_of(const A (&values)[N], A largest) {
#pragma unroll
  for (int k = 0; k < N; ++k) largest = larger(largest, values[k]);
  return largest;
}
// Returns the same maximum in every thread of the block.
template <typename A>
__device__ A block_maximum(A largest, A* scratch) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2)
    largest = larger(largest, __shfl_xor_sync(~0u, largest, distance));
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = largest;
  __syncthreads();
  for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp) largest = larger(largest, scratch[warp]);
  return largest;
}
template <typename A>
inline constexpr A kLowest = -std::numeric_limits<A>::infinity();

template <bool kWhole, typename T>
__global__ void __launch_bounds__(kThreads)
    maxima(const T* __restrict__ logits, std::int64_t vocabulary, Accumulator<T>* __restrict__ maximum) {
  using A = Accumulator<T>;
  __shared__ A scratch[kWarp];
  A largest = kLowest<A>;
  each_pack<kWhole>(logits + blockIdx.x * vocabulary, vocabulary, kLowest<A>,
                    [&](const auto& values) { largest = largest_of(values, largest); });
  largest = block_maximum(largest, scratch);
  if (threadIdx.x == 0) maximum[blockIdx.x] = largest;
}

template <typename T>
struct Sums {
  const T* logits;
  const std::int64_t* targets;
  const Accumulator<T>* maximum;
  Accumulator<T>* sums;
  std::int64_t tokens, vocabulary;
  IdRanges part;
};
template <typename T>
__device__ void write_sums(const Sums<T>& a, std::int64_t token, Accumulator<T> sum) {
  const std::int64_t target = a.part.row_of(a.targets[token]);
  a.sums[token] = sum;
  a.sums[a.tokens + token] = target >= 0 ? load(a.logits[token * a.vocabulary + target]) : Accumulator<T>{0};
}

template <bool kWhole, typename T>
__global__ void __launch_bounds__(kThreads) sums_of_exponentials(const Sums<T> a) {
  using A = Accumulator<T>;
  __shared__ A scratch[kWarp];
  const std::int64_t token = blockIdx.x;
  const A maximum = a.maximum[token];
  A sum = 0;
  each_pack<kWhole>(a.logits + token * a.vocabulary, a.vocabulary, kLowest<A>, [&](const auto& values) {
#pragma unroll
    for (const A value : values) sum += quick_exponential(value - maximum);
  });
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) write_sums(a, token, sum);
}

template <typename T>
struct Finish {
  const Accumulator<T>*maximum, *sums;
  const std::int64_t* targets;
  T* logits;
  Accumulator<T>* losses;
  std::int64_t tokens, vocabulary;
  IdRanges part;
  Accumulator<T> scale;
};
template <typename T>
__global__ void __launch_bounds__(kThreads) losses_of(const Finish<T> a) {
  using A = Accumulator<T>;
  const std::int64_t token = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (token >= a.tokens) return;
  const A loss = log(a.sums[token]) + (a.maximum[token] - a.sums[a.tokens + token]);
  const std::int64_t target = a.targets[token];
  a.losses[token] = target == -1 ? A{0} : target < -1 ? std::numeric_limits<A>::quiet_NaN() : loss;
}

// d loss / d logit_i = scale * (exp(logit_i - maximum) / sum - onehot_i)
template <bool kWhole, typename T>
__global__ void __launch_bounds__(kThreads) gradients(const Finish<T> a) {
  constexpr int N = kPack<T>;
  using A = Accumulator<T>;
  const std::int64_t token = blockIdx.x, id = a.targets[token], target = a.part.row_of(id);
  T* row = a.logits + token * a.vocabulary;
  const int step = blockDim.x * N;
  const bool masked = id == -1;
  const A maximum = a.maximum[token];
  const A inverse_sum = id < -1 ? std::numeric_limits<A>::quiet_NaN() : A{1} / a.sums[token];
  for (std::int64_t start = threadIdx.x * N; start < a.vocabulary; start += kSteps * step) {
    Pack<T, N> packs[kSteps];
    if (!masked) {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) packs[i] = load_pack<kWhole, N>(row, start + i * step, a.vocabulary);
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const std::int64_t first = start + i * step;
      A values[N] = {};
      if (!masked) {
#pragma unroll
        for (int k = 0; k < N; ++k) values[k] = a.scale * (quick_exponential(packs[i][k] - maximum) * inverse_sum);
        if (target >= first && target < first + N) {
#pragma unroll
          for (int k = 0; k < N; ++k)
            if (target == first + k)
              values[k] = a.scale * (quick_exponential(packs[i][k] - maximum) * inverse_sum - A{1});
        }
      }
      store_pack<kWhole>(row, first, a.vocabulary, rounded<T>(values));
    }
  }
}

// Adds the terms of a chunk in order. All threads load terms, and one thread adds them.
template <typename A>
__device__ A sum_of_chunk(const A* __restrict__ terms, std::int64_t count, A total, A* shared) {
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) shared[i] = terms[i];
  __syncthreads();
  if (threadIdx.x == 0) {
#pragma unroll 16
    for (int i = 0; i < static_cast<int>(count); ++i) total += shared[i];
  }
  __syncthreads();
  return total;
}
template <typename A>
__global__ void chunk_sums(const A* __restrict__ terms, std::int64_t count, A* __restrict__ sums) {
  __shared__ A shared[kChunk];
  const std::int64_t start = std::int64_t{blockIdx.x} * kChunk;
  const A sum = sum_of_chunk(terms + start, count - start < kChunk ? count - start : kChunk, A{0}, shared);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
template <typename A>
__global__ void sum_of_chunks(const A* __restrict__ chunks, std::int64_t count, double* __restrict__ sum) {
  __shared__ A shared[kChunk];
  A total = 0;
  for (std::int64_t start = 0; start < count; start += kChunk)
    total = sum_of_chunk(chunks + start, count - start < kChunk ? count - start : kChunk, total, shared);
  if (threadIdx.x == 0) *sum = total;
}

template <typename T>
unsigned threads_of(std::int64_t vocabulary) {
  return row_threads(ceil_div(vocabulary, kPack<T>), kSteps, kThreads);
}

// Calls launch(whole, rows, blocks, threads) with the arguments of the kernels for maximum and sums.
template <typename Arguments, typename Launch>
void over_rows(const CrossEntropyShape& shape, const Arguments& a, Launch&& launch) {
  if (shape.tokens == 0) return;
  dispatch_floating(shape.type, [&](auto element) {
    using T = decltype(element);
    using A = Accumulator<T>;
    const Sums<T> rows{.logits = static_cast<const T*>(a.logits),
                       .targets = a.targets,
                       .maximum = static_cast<A*>(const_cast<void*>(a.maximum)),
                       .sums = static_cast<A*>(a.sums),
                       .tokens = shape.tokens,
                       .vocabulary = shape.vocabulary,
                       .part = shape.part};
    dispatch_bool(rows_whole<T>(shape.vocabulary, a.logits), [&](auto whole) {
      launch(whole, rows, blocks_for(shape.tokens, 1), threads_of<T>(shape.vocabulary));
    });
  });
}

}  // namespace

void cross_entropy_maximum(const CrossEntropyShape& shape, const CrossEntropyMaximum& a, base::CudaStream stream) {
  if (shape.tokens == 0) return;
  dispatch_floating(shape.type, [&](auto element) {
    using T = decltype(element);
    dispatch_bool(rows_whole<T>(shape.vocabulary, a.logits), [&](auto whole) {
      maxima<decltype(whole)::value><<<blocks_for(shape.tokens, 1), threads_of<T>(shape.vocabulary), 0, stream>>>(
          static_cast<const T*>(a.logits), shape.vocabulary, static_cast<Accumulator<T>*>(a.maximum));
    });
  });
  check_launch("cross_entropy_maximum");
}

void cross_entropy_sums(const CrossEntropyShape& shape, const CrossEntropySums& a, base::CudaStream stream) {
  over_rows(shape, a, [stream](auto whole, const auto& rows, unsigned blocks, unsigned threads) {
    sums_of_exponentials<decltype(whole)::value><<<blocks, threads, 0, stream>>>(rows);
  });
  check_launch("cross_entropy_sums");
}

void cross_entropy_finish(const CrossEntropyShape& shape, const CrossEntropyFinish& a, base::CudaStream stream) {
  if (shape.tokens == 0) return;
  dispatch_floating(shape.type, [&](auto element) {
    using T = decltype(element);
    using A = Accumulator<T>;
    const Finish<T> rows{.maximum = static_cast<const A*>(a.maximum),
                         .sums = static_cast<const A*>(a.sums),
                         .targets = a.targets,
                         .logits = static_cast<T*>(a.logits),
                         .losses = static_cast<A*>(a.losses),
                         .tokens = shape.tokens,
                         .vocabulary = shape.vocabulary,
                         .part = shape.part,
                         .scale = static_cast<A>(a.scale)};
    losses_of<<<blocks_for(shape.tokens, kThreads), kThreads, 0, stream>>>(rows);
    if (a.scale == 0) return;
    dispatch_bool(rows_whole<T>(shape.vocabulary, a.logits), [&](auto whole) {
      gradients<decltype(whole)::value>
          <<<blocks_for(shape.tokens, 1), threads_of<T>(shape.vocabulary), 0, stream>>>(rows);
    });
  });
  check_launch("cross_entropy_finish");
}

std::int64_t sum_in_order_scratch(std::int64_t count) {
  return ceil_div(count, kChunk);
}

void sum_in_order(const SumInOrder& a, base::CudaStream stream) {
  dispatch_accumulator(a.type, [&](auto element) {
    using A = decltype(element);
    const std::int64_t chunks = sum_in_order_scratch(a.count);
    A* sums = static_cast<A*>(a.scratch);
    if (chunks > 0)
      chunk_sums<<<blocks_for(chunks, 1), kThreads, 0, stream>>>(static_cast<const A*>(a.terms), a.count, sums);
    sum_of_chunks<<<1, kThreads, 0, stream>>>(sums, chunks, a.sum);
  });
  check_launch("sum_in_order");
}

}  // namespace tessera::ops::cuda
