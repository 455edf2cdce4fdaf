// A fixed number of blocks process the rows. Each block sums its own part of dweight, and a second kernel adds the
// parts in order. A block processes one row at a time, or several short rows with a warp each.
#include "tessera/ops/norm/column_sums.cuh"
#include "tessera/ops/norm/dropout_factors.cuh"
#include "tessera/ops/norm/part_sums.cuh"
#include "tessera/ops/norm/rms_norm_kernels.h"
#include "tessera/ops/packs.cuh"

namespace tessera::ops::cuda {
namespace {

// Twice the number of multiprocessors of an H200. The order of the sums of dweight depends on this constant.
constexpr std::int64_t kBlocks = 264;
constexpr int kPacks = 2,
              kThreads =
                  512;  // limits for a row that fits into registers: packs of a row per thread, and threads of a block
constexpr int kLongThreads = 1024;
constexpr int kShortRows = 16;  // rows that a block processes at a time, if a warp processes a row

template <typename T>
struct Rows {
  const T* dy;    // the first part
  const T* dsum;  // null if the sum has no gradient
  const T* sum;
  const T* weight;
  const Accumulator<T>* rstd;
  T* dx;
  Accumulator<T>* parts;  // [blocks, hidden]
  std::int64_t tokens, hidden;
  T* dinput;         // written only with dropout
  DropoutMask mask;  // read only with dropout
  SumOfParts dys;    // read only with several parts
};

// The values of a row that a thread loads in advance.
template <typename T>
struct Part {
  Pack<T, kPack<T>> dy[kPacks], sum[kPacks];
  Pack<T, kPack<T>> next[kPacks];  // of the second part of dy, with several parts
  Accumulator<T> rstd;
};

template <bool kWhole, bool kSums, typename T>
__device__ __forceinline__ void fetch(const Rows<T>& rows, std::int64_t token, Part<T>& part) {
  constexpr int N = kPack<T>;
  const std::int64_t row = token * rows.hidden;
  const int first = threadIdx.x * N, step = blockDim.x * N;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    part.dy[i] = load_pack<kWhole, N>(rows.dy + row, first + i * step, rows.hidden);
    part.sum[i] = load_pack<kWhole, N>(rows.sum + row, first + i * step, rows.hidden);
    if constexpr (kSums)
      part.next[i] =
          load_pack<kWhole, N>(static_cast<const T*>(rows.dys.parts[1]) + row, first + i * step, rows.hidden);
  }
  part.rstd = rows.rstd[token];
}

template <typename T, int N>
__device__ __forceinline__ Pack<T, N> gradient(const Pack<T, N>& dy, const Pack<T, N>& sum, const Pack<T, N>& weight,
                                               Accumulator<T> rstd, Accumulator<T> factor) {
  Accumulator<T> values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = dy[i] * weight[i] * rstd - sum[i] * factor;
  return rounded<T>(values);
}
template <typename T, int N>
__device__ __forceinline__ Pack<T, N> gradient(const Pack<T, N>& dy, const Pack<T, N>& sum, const Pack<T, N>& weight,
                                               Accumulator<T> rstd, Accumulator<T> factor, const Pack<T, N>& dsum) {
  Accumulator<T> values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = (dy[i] * weight[i] * rstd - sum[i] * factor) + dsum[i];
  return rounded<T>(values);
}

// Writes dropout(dx) for the columns that start at `first`.
template <bool kWhole, typename T, int N>
__device__ __forceinline__ void drop(const Rows<T>& rows, std::int64_t token, std::int64_t first,
                                     const Pack<T, N>& dx) {
  if (first >= rows.hidden) return;
  const Factors<T, N> factors = factors_of<T, N>(rows.mask, token, first);
  Accumulator<T> values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = dx[i] * factors.values[i];
  store_pack<kWhole>(rows.dinput + token * rows.hidden, first, rows.hidden, rounded<T>(values));
}

template <typename T, int N>
__device__ __forceinline__ void add_products(const Pack<T, N>& dy, const Pack<T, N>& weight, const Pack<T, N>& sum,
                                             Accumulator<T>& product) {
#pragma unroll
  for (int i = 0; i < N; ++i) product += dy[i] * weight[i] * sum[i];
}

// Adds the sums of the rows of a block to those of its first row, in order. A row has one warp.
template <typename A, int N>
__device__ __forceinline__ void add_short_rows(A (&sums)[kPacks][N]) {
  extern __shared__ unsigned char memory[];  // [rows of the block, kPacks, N, kWarp]
  A* const kept = reinterpret_cast<A*>(memory);
  const int lane = static_cast<int>(threadIdx.x), row = static_cast<int>(threadIdx.y);
#pragma unroll
  for (int i = 0; i < kPacks; ++i)
#pragma unroll
    for (int k = 0; k < N; ++k) kept[((row * kPacks + i) * N + k) * kWarp + lane] = sums[i][k];
  __syncthreads();
  if (row > 0) return;
  for (int other = 1; other < static_cast<int>(blockDim.y); ++other)
#pragma unroll
    for (int i = 0; i < kPacks; ++i)
#pragma unroll
      for (int k = 0; k < N; ++k) sums[i][k] += kept[((other * kPacks + i) * N + k) * kWarp + lane];
}

// For rows of at most kPacks packs per thread. The next row is loaded while the current row is processed. kSums: dy has
// several parts.
template <bool kWhole, bool kDrops, bool kSums, typename T>
__global__ void __launch_bounds__(kThreads) backward_kept(const Rows<T> rows) {
  constexpr int N = kPack<T>;
  using A = Accumulator<T>;
  __shared__ A scratch[2][kWarp];
  const int first = threadIdx.x * N, step = blockDim.x * N;
  Pack<T, N> weight[kPacks];
  A dweight[kPacks][N] = {};
#pragma unroll
  for (int i = 0; i < kPacks; ++i) weight[i] = load_pack<kWhole, N>(rows.weight, first + i * step, rows.hidden);
  const std::int64_t own = std::int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const std::int64_t stride = std::int64_t{gridDim.x} * blockDim.y;
  Part<T> part;
  if (own < rows.tokens) fetch<kWhole, kSums>(rows, own, part);
  int turn = 0;
  for (std::int64_t token = own; token < rows.tokens; token += stride) {
    Part<T> next;
    Pack<T, N> dsum[kPacks];
    if (rows.dsum != nullptr) {
#pragma unroll
      for (int i = 0; i < kPacks; ++i)
        dsum[i] = load_pack<kWhole, N>(rows.dsum + token * rows.hidden, first + i * step, rows.hidden);
    }
    if (token + stride < rows.tokens) fetch<kWhole, kSums>(rows, token + stride, next);
    if constexpr (kSums) sum_parts<kWhole>(rows.dys, token * rows.hidden, first, step, rows.hidden, part.dy, part.next);
    A product = 0;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) add_products(part.dy[i], weight[i], part.sum[i], product);
    product = block_sum(product, scratch[turn]);
    turn ^= 1;
    const A rstd = part.rstd, factor = product * rstd * rstd * rstd / static_cast<A>(rows.hidden);
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
#pragma unroll
      for (int k = 0; k < N; ++k) dweight[i][k] += part.dy[i][k] * (part.sum[i][k] * rstd);
      const auto dx = rows.dsum == nullptr ? gradient(part.dy[i], part.sum[i], weight[i], rstd, factor)
                                           : gradient(part.dy[i], part.sum[i], weight[i], rstd, factor, dsum[i]);
      store_pack<kWhole>(rows.dx + token * rows.hidden, first + i * step, rows.hidden, dx);
      if constexpr (kDrops) drop<kWhole>(rows, token, first + i * step, dx);
    }
    part = next;
  }
  if (blockDim.y > 1) add_short_rows(dweight);
  if (threadIdx.y > 0) return;
#pragma unroll
  for (int i = 0; i < kPacks; ++i)
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (first + i * step + k < rows.hidden)
        rows.parts[blockIdx.x * rows.hidden + first + i * step + k] = dweight[i][k];
}

// For rows of any length. Computes only dx, which may be the same memory as dy.
template <bool kWhole, bool kDrops, typename T>
__global__ void __launch_bounds__(kLongThreads) backward_long(const Rows<T> rows) {
  constexpr int N = kPack<T>;
  using A = Accumulator<T>;
  __shared__ A scratch[kWarp];
  const std::int64_t row = blockIdx.x * rows.hidden, hidden = rows.hidden;
  A product = 0;
  for (std::int64_t i = threadIdx.x * N; i < hidden; i += blockDim.x * N)
    add_products(load_pack<kWhole, N>(rows.dy + row, i, hidden), load_pack<kWhole, N>(rows.weight, i, hidden),
                 load_pack<kWhole, N>(rows.sum + row, i, hidden), product);
  const A rstd = rows.rstd[blockIdx.x];
  const A factor = block_sum(product, scratch) * rstd * rstd * rstd / static_cast<A>(hidden);
  for (std::int64_t i = threadIdx.x * N; i < hidden; i += blockDim.x * N) {
    const auto dy = load_pack<kWhole, N>(rows.dy + row, i, hidden),
               sum = load_pack<kWhole, N>(rows.sum + row, i, hidden);
    const auto weight = load_pack<kWhole, N>(rows.weight, i, hidden);
    const auto dx = rows.dsum == nullptr
                        ? gradient(dy, sum, weight, rstd, factor)
                        : gradient(dy, sum, weight, rstd, factor, load_pack<kWhole, N>(rows.dsum + row, i, hidden));
    store_pack<kWhole>(rows.dx + row, i, hidden, dx);
    if constexpr (kDrops) drop<kWhole>(rows, blockIdx.x, i, dx);
  }
}
// Computes dweight for rows of any length, with one column per thread. Part blockIdx.y sums every gridDim.y-th token.
template <typename T>
__global__ void __launch_bounds__(kLongThreads) dweight_long(const Rows<T> rows) {
  const std::int64_t column = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (column >= rows.hidden) return;
  Accumulator<T> total = 0;
#pragma unroll 4
  for (std::int64_t token = blockIdx.y; token < rows.tokens; token += gridDim.y) {
    const std::int64_t at = token * rows.hidden + column;
    total += load(rows.dy[at]) * (load(rows.sum[at]) * rows.rstd[token]);
  }
  rows.parts[blockIdx.y * rows.hidden + column] = total;
}

// Returns the threads of a row and the rows that a block processes at a time.
dim3 threads_of(std::int64_t packs) {
  const unsigned threads = row_threads(packs, kPacks, kThreads);
  return {threads, threads == kWarp ? kShortRows : 1U};
}
template <typename T>
std::int64_t packs_of(const RmsNormShape& shape) {
  return ceil_div(shape.hidden, kPack<T>);
}
std::int64_t blocks_of(const RmsNormShape& shape) {
  std::int64_t rows = 1;
  dispatch_floating(shape.type, [&](auto element) { rows = threads_of(packs_of<decltype(element)>(shape)).y; });
  return std::min(ceil_div(shape.tokens, rows), kBlocks);
}

template <bool kWhole, bool kDrops, bool kSums, typename T>
void backward(const RmsNormShape& shape, Rows<T> rows, base::CudaStream stream) {
  const std::int64_t packs = packs_of<T>(shape);
  const auto blocks = static_cast<unsigned>(blocks_of(shape));
  if (packs <= kPacks * kThreads) {
    const dim3 threads = threads_of(packs);
    const std::size_t shared = threads.y > 1 ? threads.y * kPacks * kPack<T> * kWarp * sizeof(Accumulator<T>) : 0;
    backward_kept<kWhole, kDrops, kSums><<<blocks, threads, shared, stream>>>(rows);
  } else {
    if constexpr (kSums) {
      // dx holds the sum of the parts until it is overwritten.
      sum_rows<kWhole><<<blocks_for(shape.tokens, 1), kLongThreads, 0, stream>>>(rows.dys, rows.hidden, rows.dx);
      rows.dy = rows.dx;
    }
    const dim3 grid(blocks_for(shape.hidden, kLongThreads), blocks);
    dweight_long<<<grid, kLongThreads, 0, stream>>>(rows);
    backward_long<kWhole, kDrops><<<blocks_for(shape.tokens, 1), kLongThreads, 0, stream>>>(rows);
  }
  check_launch("rms_norm_backward");
}

}  // namespace

std::int64_t rms_norm_backward_scratch(const RmsNormShape& shape) {
  return blocks_of(shape) * shape.hidden;
}

void rms_norm_backward(const RmsNormShape& shape, const RmsNormBackward& a, const RmsNormParts& parts,
                       base::CudaStream stream) {
  if (shape.hidden == 0) return;
  dispatch_floating(shape.type, [&](auto element) {
    using T = decltype(element);
    using A = Accumulator<T>;
    const Rows<T> rows{.dy = static_cast<const T*>(a.dy.parts[0]),
                       .dsum = static_cast<const T*>(a.dsum),
                       .sum = static_cast<const T*>(a.sum),
                       .weight = static_cast<const T*>(a.weight),
                       .rstd = static_cast<const A*>(a.rstd),
                       .dx = static_cast<T*>(a.dx),
                       .parts = static_cast<A*>(parts.scratch),
                       .tokens = shape.tokens,
                       .hidden = shape.hidden,
                       .dinput = static_cast<T*>(a.dinput),
                       .mask = DropoutMask(a.dropout),
                       .dys = a.dy};
    const bool whole_rows =
        parts_whole<T>(a.dy, shape.hidden) && rows_whole<T>(shape.hidden, a.dsum, a.sum, a.weight, a.dx, a.dinput);
    if (shape.tokens > 0)
      dispatch_bool(whole_rows, [&](auto whole) {
        dispatch_bool(a.dropout.drops(), [&](auto drops) {
          dispatch_bool(a.dy.count > 1, [&](auto sums) {
            backward<decltype(whole)::value, decltype(drops)::value, decltype(sums)::value>(shape, rows, stream);
          });
        });
      });
    sum_columns(rows.parts, blocks_of(shape), shape.hidden, static_cast<A*>(a.dweight), parts.accumulate, stream);
  });
  check_launch("rms_norm_backward");
}

}  // namespace tessera::ops::cuda
