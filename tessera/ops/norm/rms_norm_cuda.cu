// Forward uses one block per row, or one warp per row if the row is short, and keeps the row in registers if it fits.
// Backward is in rms_norm_backward_cuda.cu.
#include "tessera/ops/norm/dropout_factors.cuh"
#include "tessera/ops/norm/part_sums.cuh"
#include "tessera/ops/norm/rms_norm_kernels.h"
#include "tessera/ops/packs.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = 1024;  // largest number of threads of a block
constexpr int kShortRows = 8;   // rows of a block, if a warp processes a row

template <typename T>
struct Rows {
  const T* x;         // the first part
  const T* residual;  // null without a residual
  const T* weight;
  T* sum;  // written only with a residual, with dropout or with several parts
  T* y;
  Accumulator<T>* rstd;
  std::int64_t tokens, hidden;
  Accumulator<T> eps;
  DropoutMask mask;  // read only with dropout
  SumOfParts parts;  // read only with several parts
};

template <typename T, int N>
__device__ __forceinline__ Pack<T, N> added(const Pack<T, N>& a, const Pack<T, N>& b) {
  Accumulator<T> values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = a[i] + b[i];
  return rounded<T>(values);
}

// Returns dropout(a) + b, rounded once. If kAdds is false, returns dropout(a).
template <bool kAdds, typename T, int N>
__device__ __forceinline__ Pack<T, N> added(const Pack<T, N>& a, const Pack<T, N>& b,
                                            const Accumulator<T> (&factors)[N]) {
  Accumulator<T> values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    values[i] = a[i] * factors[i];
    if (kAdds) values[i] = values[i] + b[i];
  }
  return rounded<T>(values);
}

template <typename T, int N>
__device__ __forceinline__ void add_squares(const Pack<T, N>& pack, Accumulator<T>& squares) {
#pragma unroll
  for (int i = 0; i < N; ++i) squares += pack[i] * pack[i];
}

template <typename T, int N>
__device__ __forceinline__ Pack<T, N> scaled(const Pack<T, N>& sum, Accumulator<T> rstd, const Pack<T, N>& weight) {
  Accumulator<T> values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = sum[i] * rstd * weight[i];
  return rounded<T>(values);
}

template <typename A>
__device__ __forceinline__ A reciprocal_rms(A squares, std::int64_t hidden, A eps) {
  return A{1} / sqrt(squares / static_cast<A>(hidden) + eps);
}

// Returns the row of the calling thread. A block has several rows only if a row has one warp.
__device__ __forceinline__ std::int64_t row_of_thread() {
  return std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
}

// For rows of at most kPacks packs per thread. kSums: x has several parts.
template <bool kWhole, bool kDrops, bool kSums, int kPacks, typename T>
__global__ void __launch_bounds__(kThreads) forward_kept(const Rows<T> rows) {
  constexpr int N = kPack<T>;
  using A = Accumulator<T>;
  __shared__ A scratch[kWarp];
  const std::int64_t token = row_of_thread(), row = token * rows.hidden;
  if (token >= rows.tokens) return;
  const int first = threadIdx.x * N, step = blockDim.x * N;
  Pack<T, N> kept[kPacks], weight[kPacks], next[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) kept[i] = load_pack<kWhole, N>(rows.x + row, first + i * step, rows.hidden);
  if constexpr (kSums) {
    const T* part = static_cast<const T*>(rows.parts.parts[1]) + row;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) next[i] = load_pack<kWhole, N>(part, first + i * step, rows.hidden);
  }
  if (rows.residual != nullptr) {
    Pack<T, N> other[kPacks];
#pragma unroll
    for (int i = 0; i < kPacks; ++i)
      other[i] = load_pack<kWhole, N>(rows.residual + row, first + i * step, rows.hidden);
    if constexpr (kSums) sum_parts<kWhole>(rows.parts, row, first, step, rows.hidden, kept, next);
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if constexpr (kDrops)
        kept[i] = added<true>(kept[i], other[i], factors_of<T, N>(rows.mask, token, first + i * step).values);
      else
        kept[i] = added(kept[i], other[i]);
      store_pack<kWhole>(rows.sum + row, first + i * step, rows.hidden, kept[i]);
    }
  } else if constexpr (kDrops || kSums) {
    if constexpr (kSums) sum_parts<kWhole>(rows.parts, row, first, step, rows.hidden, kept, next);
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if constexpr (kDrops)
        kept[i] = added<false>(kept[i], kept[i], factors_of<T, N>(rows.mask, token, first + i * step).values);
      store_pack<kWhole>(rows.sum + row, first + i * step, rows.hidden, kept[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kPacks; ++i) weight[i] = load_pack<kWhole, N>(rows.weight, first + i * step, rows.hidden);
  A squares = 0;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) add_squares(kept[i], squares);
  const A rstd = reciprocal_rms(block_sum(squares, scratch), rows.hidden, rows.eps);
  if (threadIdx.x == 0) rows.rstd[token] = rstd;
#pragma unroll
  for (int i = 0; i < kPacks; ++i)
    store_pack<kWhole>(rows.y + row, first + i * step, rows.hidden, scaled(kept[i], rstd, weight[i]));
}

// For rows of any length. Each thread reads its stored values again.
template <bool kWhole, bool kDrops, bool kSums, typename T>
__global__ void __launch_bounds__(kThreads) forward_long(const Rows<T> rows) {
  constexpr int N = kPack<T>;
  using A = Accumulator<T>;
  __shared__ A scratch[kWarp];
  const std::int64_t row = blockIdx.x * rows.hidden;
  A squares = 0;
  for (std::int64_t i = threadIdx.x * N; i < rows.hidden; i += blockDim.x * N) {
    Pack<T, N> pack = load_pack<kWhole, N>(rows.x + row, i, rows.hidden);
    if constexpr (kSums) {
      const T* part = static_cast<const T*>(rows.parts.parts[1]) + row;
      Pack<T, N> first[1]{pack}, next[1]{load_pack<kWhole, N>(part, i, rows.hidden)};
      sum_parts<kWhole>(rows.parts, row, i, 0, rows.hidden, first, next);
      pack = first[0];
    }
    Pack<T, N> other;
    if (rows.residual != nullptr) other = load_pack<kWhole, N>(rows.residual + row, i, rows.hidden);
    if constexpr (kDrops) {
      const Factors<T, N> factors = factors_of<T, N>(rows.mask, blockIdx.x, i);
      pack = rows.residual != nullptr ? added<true>(pack, other, factors.values)
                                      : added<false>(pack, pack, factors.values);
    } else if (rows.residual != nullptr) {
      pack = added(pack, other);
    }
    if (kDrops || kSums || rows.residual != nullptr) store_pack<kWhole>(rows.sum + row, i, rows.hidden, pack);
    add_squares(pack, squares);
  }
  const A rstd = reciprocal_rms(block_sum(squares, scratch), rows.hidden, rows.eps);
  if (threadIdx.x == 0) rows.rstd[blockIdx.x] = rstd;
  const T* sum = kDrops || kSums || rows.residual != nullptr ? rows.sum : rows.x;
  for (std::int64_t i = threadIdx.x * N; i < rows.hidden; i += blockDim.x * N) {
    const auto weight = load_pack<kWhole, N>(rows.weight, i, rows.hidden);
    store_pack<kWhole>(rows.y + row, i, rows.hidden,
                       scaled(load_pack<kWhole, N>(sum + row, i, rows.hidden), rstd, weight));
  }
}

template <bool kWhole, typename T>
__global__ void __launch_bounds__(kThreads) apply_rows(const Rows<T> rows) {
  constexpr int N = kPack<T>;
  const std::int64_t token = row_of_thread(), row = token * rows.hidden;
  if (token >= rows.tokens) return;
  const Accumulator<T> rstd = rows.rstd[token];
#pragma unroll 4
  for (std::int64_t i = threadIdx.x * N; i < rows.hidden; i += blockDim.x * N) {
    const auto sum = load_pack<kWhole, N>(rows.x + row, i, rows.hidden);
    const auto weight = load_pack<kWhole, N>(rows.weight, i, rows.hidden);
    store_pack<kWhole>(rows.y + row, i, rows.hidden, scaled(sum, rstd, weight));
  }
}

// Returns the threads of a row and the rows of a block.
dim3 threads_of(std::int64_t packs) {
  const unsigned threads = row_threads(packs, 2, kThreads);
  return {threads, threads == kWarp ? kShortRows : 1U};
}

}  // namespace

void rms_norm_forward(const RmsNormShape& shape, const RmsNormForward& a, base::CudaStream stream) {
  if (shape.tokens == 0) return;
  dispatch_floating(shape.type, [&](auto element) {
    using T = decltype(element);
    const Rows<T> rows{.x = static_cast<const T*>(a.x.parts[0]),
                       .residual = static_cast<const T*>(a.residual),
                       .weight = static_cast<const T*>(a.weight),
                       .sum = static_cast<T*>(a.sum),
                       .y = static_cast<T*>(a.y),
                       .rstd = static_cast<Accumulator<T>*>(a.rstd),
                       .tokens = shape.tokens,
                       .hidden = shape.hidden,
                       .eps = static_cast<Accumulator<T>>(a.eps),
                       .mask = DropoutMask(a.dropout),
                       .parts = a.x};
    const std::int64_t packs = ceil_div(shape.hidden, kPack<T>);
    const dim3 threads = threads_of(packs);
    const unsigned blocks = blocks_for(shape.tokens, threads.y);
    const auto launch = [&](auto whole, auto drops, auto sums) {
      constexpr bool kWhole = decltype(whole)::value, kDrops = decltype(drops)::value, kSums = decltype(sums)::value;
      if (packs <= 2 * kThreads)
        forward_kept<kWhole, kDrops, kSums, 2><<<blocks, threads, 0, stream>>>(rows);
      else if (packs <= 4 * kThreads)
        forward_kept<kWhole, kDrops, kSums, 4><<<blocks, kThreads, 0, stream>>>(rows);
      else
        forward_long<kWhole, kDrops, kSums><<<blocks, kThreads, 0, stream>>>(rows);
    };
    const bool whole_rows =
        parts_whole<T>(a.x, shape.hidden) && rows_whole<T>(shape.hidden, a.residual, a.weight, a.sum, a.y);
    dispatch_bool(whole_rows, [&](auto whole) {
      dispatch_bool(a.dropout.drops(),
                    [&](auto drops) { dispatch_bool(a.x.count > 1, [&](auto sums) { launch(whole, drops, sums); }); });
    });
  });
  check_launch("rms_norm_forward");
}

void rms_norm_apply(const RmsNormShape& shape, const RmsNormApply& a, base::CudaStream stream) {
  if (shape.tokens == 0) return;
  dispatch_floating(shape.type, [&](auto element) {
    using T = decltype(element);
    const Rows<T> rows{.x = static_cast<const T*>(a.sum),
                       .weight = static_cast<const T*>(a.weight),
                       .y = static_cast<T*>(a.y),
                       .rstd = static_cast<Accumulator<T>*>(const_cast<void*>(a.rstd)),
                       .tokens = shape.tokens,
                       .hidden = shape.hidden};
    const dim3 threads = threads_of(ceil_div(shape.hidden, kPack<T>));
    dispatch_bool(rows_whole<T>(shape.hidden, a.sum, a.weight, a.y), [&](auto whole) {
      apply_rows<decltype(whole)::value><<<blocks_for(shape.tokens, threads.y), threads, 0, stream>>>(rows);
    });
  });
  check_launch("rms_norm_apply");
}

}  // namespace tessera::ops::cuda
