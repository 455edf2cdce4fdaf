// A group of lanes processes a head: each lane has packs of the first half of the head and the matching packs of the
// second half. A sum over a head adds the packs of a lane in order, and then the lanes of the group.
#include "tessera/ops/head_norms/head_norm_rope_kernels.h"
#include "tessera/ops/norm/column_sums.cuh"
#include "tessera/ops/rope/rope_angles.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = 256;
// Packs of half a head for each lane, if 32 lanes with one pack are too few for 512 elements.
template <typename T>
inline constexpr int kLongPacks = sizeof(T) == 2 ? 1 : 4;
// Blocks of a backward pass: four for each multiprocessor of an H200. The order of the sums of the weights' gradients
// depends on this constant.
constexpr std::int64_t kBlocks = 528;
constexpr std::int64_t kItems = std::int64_t{1} << 30;  // threads of a launch, limited by Divisor

// Heads of a token that a group of lanes processes at once. They share the angles.
template <bool kForward, int kPacks>
inline constexpr int kHeads = kPacks > 1 ? 1
                              : kForward ? 4
                                         : 2;

template <typename T>
struct Call {
  AngleTable<Accumulator<T>> angles;
  const T* stacked;
  std::int64_t tokens;
  std::int32_t q_heads, kv_heads, lanes;
};

// The packs of one head in a lane.
template <typename T, int kPacks>
struct HeadPacks {
  Pack<T, kPack<T>> left[kPacks], right[kPacks];

  template <bool kWhole>
  __device__ __forceinline__ void load(const T* head, std::int64_t half, int lane, int lanes) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const std::int64_t first = std::int64_t{lane + i * lanes} * kPack<T>;
      left[i] = load_pack<kWhole, kPack<T>>(head, first, half);
      right[i] = load_pack<kWhole, kPack<T>>(head + half, first, half);
    }
  }
  template <bool kWhole>
  __device__ __forceinline__ void store(T* head, std::int64_t half, int lane, int lanes) const {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const std::int64_t first = std::int64_t{lane + i * lanes} * kPack<T>;
      store_pack<kWhole>(head, first, half, left[i]);
      store_pack<kWhole>(head + half, first, half, right[i]);
    }
  }
};

// Returns the sum over the lanes of a group, in every lane. All lanes of the warp take part. `lanes` is a power of two.
template <typename A>
__device__ __forceinline__ A group_sum(A value, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(~0u, value, distance);
  return value;
}

template <bool kForward, bool kWhole, typename A, int N, int kPacks>
__device__ __forceinline__ void load_angles(Angles<kForward, A, N> (&angles)[kPacks], const AngleTable<A>& table,
                                            std::int64_t token, int lane, int lanes) {
#pragma unroll
  for (int i = 0; i < kPacks; ++i) angles[i].template load<kWhole>(table, token, std::int64_t{lane + i * lanes} * N);
}

template <typename T>
struct Forward {
  Call<T> call;
  const T *q_weight, *k_weight;
  Accumulator<T> q_eps, k_eps;
  Accumulator<T>* rstd;
  T *q, *k;
  std::uint32_t groups;
  Divisor per_token;  // groups of a token
};

template <typename T, int N>
__device__ __forceinline__ Pack<T, N> scaled(const Pack<T, N>& value, Accumulator<T> rstd, const Pack<T, N>& weight) {
  Accumulator<T> values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = value[i] * rstd * weight[i];
  return rounded<T>(values);
}

template <bool kWhole, bool kReadsRstd, int kPacks, typename T>
__global__ void __launch_bounds__(kThreads) norm_and_turn(const Forward<T> a) {
  constexpr int N = kPack<T>, kAtOnce = kHeads<true, kPacks>;
  using A = Accumulator<T>;
  const Call<T>& call = a.call;
  const int lanes = call.lanes, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const std::uint32_t group = (blockIdx.x * kThreads + threadIdx.x) / static_cast<std::uint32_t>(lanes);
  const std::uint32_t token = a.per_token.quotient(group);
  const int begin = static_cast<int>(a.per_token.remainder(group, token)) * kAtOnce;
  // The lanes of a group without heads take part in the sums of their warp.
  const int count = group < a.groups ? min(kAtOnce, call.q_heads + call.kv_heads - begin) : 0;
  const std::int64_t half = call.angles.half, size = 2 * half;
  const std::int64_t row = std::int64_t{token} * (call.q_heads + 2 * call.kv_heads) + begin;
  HeadPacks<T, kPacks> heads[kAtOnce] = {};
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i)
    if (i < count) heads[i].template load<kWhole>(call.stacked + (row + i) * size, half, lane, lanes);
  Angles<true, A, N> angles[kPacks];
  if (count > 0) load_angles<true, kWhole>(angles, call.angles, token, lane, lanes);
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    const bool is_q = begin + i < call.q_heads;
    A squares = 0;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
#pragma unroll
      for (int k = 0; k < N; ++k) squares += heads[i].left[p][k] * heads[i].left[p][k];
#pragma unroll
      for (int k = 0; k < N; ++k) squares += heads[i].right[p][k] * heads[i].right[p][k];
    }
    squares = group_sum(squares, lanes);
    if (i >= count) continue;
    A* const kept = a.rstd + std::int64_t{token} * (call.q_heads + call.kv_heads) + begin + i;
    A rstd;
    if constexpr (kReadsRstd) {
      rstd = *kept;
    } else {
      rstd = A{1} / sqrt(squares / static_cast<A>(size) + (is_q ? a.q_eps : a.k_eps));
      if (lane == 0) *kept = rstd;
    }
    HeadPacks<T, kPacks> weight;
    weight.template load<kWhole>(is_q ? a.q_weight : a.k_weight, half, lane, lanes);
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      heads[i].left[p] = scaled(heads[i].left[p], rstd, weight.left[p]);
      heads[i].right[p] = scaled(heads[i].right[p], rstd, weight.right[p]);
      angles[p].turn(heads[i].left[p], heads[i].right[p]);
    }
    T* to = is_q ? a.q + (std::int64_t{token} * call.q_heads + begin + i) * size
                 : a.k + (std::int64_t{token} * call.kv_heads + begin + i - call.q_heads) * size;
    heads[i].template store<kWhole>(to, half, lane, lanes);
  }
}

// The heads of q, or those of k with the values that belong to them.
template <typename T>
struct Part {
  const T *gradient, *values, *weight;  // values: the gradient of v, or null
  T* to;                                // first of these heads in the first stacked row of the result
  T* values_to;
  std::int64_t first;   // index of the first of these heads in a stacked row
  std::int64_t groups;  // groups of heads in all tokens
  std::int32_t heads, blocks, per_token;
};
template <typename T>
struct Backward {
  Call<T> call;
  Part<T> q, k;
  const Accumulator<T>* rstd;
  Accumulator<T>* parts;  // [blocks of q + blocks of k, head_dim]
};

// Returns the gradient of a head before its norm, for the elements of a pack.
template <typename T, int N>
__device__ __forceinline__ Pack<T, N> normed_gradient(const Pack<T, N>& dy, const Pack<T, N>& x,
                                                      const Pack<T, N>& weight, Accumulator<T> rstd,
                                                      Accumulator<T> factor) {
  Accumulator<T> values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = dy[i] * weight[i] * rstd - x[i] * factor;
  return rounded<T>(values);
}

// The sums of a lane for the gradient of a weight.
template <typename T, int kPacks>
struct WeightSums {
  static constexpr int N = kPack<T>;
  Accumulator<T> left[kPacks][N] = {}, right[kPacks][N] = {};

  __device__ __forceinline__ void add(const HeadPacks<T, kPacks>& dy, const HeadPacks<T, kPacks>& x,
                                      Accumulator<T> rstd) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int k = 0; k < N; ++k) {
        left[p][k] += dy.left[p][k] * (x.left[p][k] * rstd);
        right[p][k] += dy.right[p][k] * (x.right[p][k] * rstd);
      }
  }
  // Adds the groups of the block in order and writes the sums of 2 * half columns.
  __device__ __forceinline__ void write(Accumulator<T>* sums, std::int64_t half, int lanes, Accumulator<T>* to) const {
    const int lane = static_cast<int>(threadIdx.x) & (lanes - 1), group = static_cast<int>(threadIdx.x) / lanes;
    const int side = lanes * kPacks * N;  // elements of half a head, with those that only fill packs
    Accumulator<T>* own = sums + group * 2 * side;
#pragma unroll
    for (int p = 0; p < kPacks; ++p)
#pragma unroll
      for (int k = 0; k < N; ++k) {
        own[(lane + p * lanes) * N + k] = left[p][k];
        own[side + (lane + p * lanes) * N + k] = right[p][k];
      }
    __syncthreads();
    for (int column = static_cast<int>(threadIdx.x); column < 2 * half; column += kThreads) {
      const int at = column < half ? column : side + column - static_cast<int>(half);
      Accumulator<T> total = 0;
      for (int g = 0; g < kThreads / lanes; ++g) total += sums[g * 2 * side + at];
      to[column] = total;
    }
  }
};

template <bool kWhole, int kPacks, typename T>
__global__ void __launch_bounds__(kThreads) turn_back(const Backward<T> a) {
  constexpr int N = kPack<T>, kAtOnce = kHeads<false, kPacks>;
  using A = Accumulator<T>;
  __shared__ A sums[kThreads * 2 * kPacks * N];
  const Call<T>& call = a.call;
  const bool is_q = static_cast<int>(blockIdx.x) < a.q.blocks;
  const Part<T>& part = is_q ? a.q : a.k;
  const int lanes = call.lanes, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const int block = static_cast<int>(blockIdx.x) - (is_q ? 0 : a.q.blocks);
  const std::int64_t half = call.angles.half, size = 2 * half, stacked_heads = call.q_heads + 2 * call.kv_heads;
  const std::int64_t step = std::int64_t{part.blocks} * (kThreads / lanes);
  HeadPacks<T, kPacks> weight;
  weight.template load<kWhole>(part.weight, half, lane, lanes);
  WeightSums<T, kPacks> dweight;
  // Every group of a block takes the same number of turns, because all lanes of a warp take part in a sum.
  for (std::int64_t first = std::int64_t{block} * (kThreads / lanes); first < part.groups; first += step) {
    const std::int64_t group = first + static_cast<int>(threadIdx.x) / lanes;
    const std::int64_t token = group / part.per_token;
    const int begin = static_cast<int>(group - token * part.per_token) * kAtOnce;
    const int count = group < part.groups ? min(kAtOnce, part.heads - begin) : 0;
    const std::int64_t row = token * stacked_heads + part.first + begin, own = token * part.heads + begin;
    HeadPacks<T, kPacks> dy[kAtOnce] = {}, x[kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (i >= count) continue;
      dy[i].template load<kWhole>(part.gradient + (own + i) * size, half, lane, lanes);
      x[i].template load<kWhole>(call.stacked + (row + i) * size, half, lane, lanes);
      if (part.values == nullptr) continue;
      HeadPacks<T, kPacks> values;
      values.template load<kWhole>(part.values + (own + i) * size, half, lane, lanes);
      values.template store<kWhole>(part.values_to + (token * stacked_heads + begin + i) * size, half, lane, lanes);
    }
    Angles<false, A, N> angles[kPacks];
    if (count > 0) load_angles<false, kWhole>(angles, call.angles, token, lane, lanes);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      A product = 0;
      if (i < count) {
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
          angles[p].turn(dy[i].left[p], dy[i].right[p]);
#pragma unroll
          for (int k = 0; k < N; ++k) product += dy[i].left[p][k] * weight.left[p][k] * x[i].left[p][k];
#pragma unroll
          for (int k = 0; k < N; ++k) product += dy[i].right[p][k] * weight.right[p][k] * x[i].right[p][k];
        }
      }
      product = group_sum(product, lanes);
      if (i >= count) continue;
      const A rstd = a.rstd[token * (call.q_heads + call.kv_heads) + part.first + begin + i];
      const A factor = product * rstd * rstd * rstd / static_cast<A>(size);
      dweight.add(dy[i], x[i], rstd);
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        dy[i].left[p] = normed_gradient(dy[i].left[p], x[i].left[p], weight.left[p], rstd, factor);
        dy[i].right[p] = normed_gradient(dy[i].right[p], x[i].right[p], weight.right[p], rstd, factor);
      }
      dy[i].template store<kWhole>(part.to + (token * stacked_heads + begin + i) * size, half, lane, lanes);
    }
  }
  dweight.write(sums, half, lanes, a.parts + std::int64_t{blockIdx.x} * size);
}

template <typename T>
std::int64_t packs_of(const HeadRows& rows) {
  return ceil_div(rows.head_dim / 2, kPack<T>);
}
// Returns the number of lanes of a head. A lane has one pack of each half of the head, or kLongPacks packs.
template <typename T>
int lanes_of(const HeadRows& rows) {
  const std::int64_t packs = packs_of<T>(rows);
  int lanes = 1;
  while (lanes * (packs > kWarp ? kLongPacks<T> : 1) < packs) lanes *= 2;
  return lanes;
}

// The blocks that process the heads of q, and those that process the heads of k and v. A head of k costs as much as
// one and a half heads of q, because its block also copies a head of v.
struct Blocks {
  std::int64_t q = 0, k = 0;
};
Blocks blocks_of(const HeadRows& rows) {
  if (rows.tokens == 0) return {};
  if (rows.kv_heads == 0) return {.q = rows.q_heads == 0 ? 0 : kBlocks, .k = 0};
  if (rows.q_heads == 0) return {.q = 0, .k = kBlocks};
  const std::int64_t k = kBlocks * 3 * rows.kv_heads / (2 * rows.q_heads + 3 * rows.kv_heads);
  const std::int64_t of_k = std::clamp<std::int64_t>(k, 1, kBlocks - 1);
  return {.q = kBlocks - of_k, .k = of_k};
}

template <typename T>
Call<T> call_of(const HeadRows& rows, std::int64_t first_token, std::int64_t tokens) {
  using A = Accumulator<T>;
  const std::int64_t half = rows.head_dim / 2;
  return {
      .angles = {.positions = rows.positions + first_token,
                 .cosine = static_cast<const A*>(rows.cosine),
                 .sine = static_cast<const A*>(rows.sine),
                 .rows = rows.table_rows,
                 .half = half},
      .stacked = static_cast<const T*>(rows.stacked) + first_token * (rows.q_heads + 2 * rows.kv_heads) * rows.head_dim,
      .tokens = tokens,
      .q_heads = static_cast<std::int32_t>(rows.q_heads),
      .kv_heads = static_cast<std::int32_t>(rows.kv_heads),
      .lanes = lanes_of<T>(rows)};
}

// Calls function(T, whole, packs) with the element type, whether packs are whole, and the packs of a lane as types.
template <typename Function, typename... Pointers>
void dispatch_heads(const HeadRows& rows, Function&& function, Pointers... pointers) {
  dispatch_floating(rows.type, [&](auto element) {
    using T = decltype(element);
    const std::int64_t half = rows.head_dim / 2;
    const bool whole =
        rows_whole<T>(half, rows.stacked, rows.q_weight, rows.k_weight, rows.cosine, rows.sine, pointers...);
    dispatch_bool(whole, [&](auto is_whole) {
      if (packs_of<T>(rows) > kWarp)
        function(element, is_whole, std::integral_constant<int, kLongPacks<T>>{});
      else
        function(element, is_whole, std::integral_constant<int, 1>{});
    });
  });
}

}  // namespace

bool has_head_norm_kernels(quant::DType type, std::int64_t head_dim) {
  bool has = false;
  dispatch_floating(type, [&](auto element) {
    has = ceil_div(head_dim / 2, kPack<decltype(element)>) <= kWarp * kLongPacks<decltype(element)>;
  });
  return has;
}

void head_norm_rope_forward(const HeadRows& rows, const HeadNormForward& a, base::CudaStream stream) {
  const std::int64_t heads = rows.q_heads + rows.kv_heads;
  if (heads == 0) return;
  dispatch_heads(
      rows,
      [&](auto element, auto whole, auto packs) {
        using T = decltype(element);
        using A = Accumulator<T>;
        constexpr bool kWhole = decltype(whole)::value;
        constexpr int kPacks = decltype(packs)::value;
        const std::int64_t per_token = ceil_div(heads, kHeads<true, kPacks>);
        const std::int64_t lanes = lanes_of<T>(rows);
        const std::int64_t most = std::max<std::int64_t>(1, kItems / (per_token * lanes));
        for (std::int64_t token = 0; token < rows.tokens; token += most) {
          const std::int64_t tokens = std::min(most, rows.tokens - token);
          const Forward<T> launch{.call = call_of<T>(rows, token, tokens),
                                  .q_weight = static_cast<const T*>(rows.q_weight),
                                  .k_weight = static_cast<const T*>(rows.k_weight),
                                  .q_eps = static_cast<A>(a.q_eps),
                                  .k_eps = static_cast<A>(a.k_eps),
                                  .rstd = static_cast<A*>(a.rstd) + token * heads,
                                  .q = static_cast<T*>(a.q) + token * rows.q_heads * rows.head_dim,
                                  .k = static_cast<T*>(a.k) + token * rows.kv_heads * rows.head_dim,
                                  .groups = static_cast<std::uint32_t>(tokens * per_token),
                                  .per_token = Divisor(per_token)};
          const unsigned blocks = blocks_for(tokens * per_token * lanes, kThreads);
          dispatch_bool(a.reads_rstd, [&](auto reads) {
            norm_and_turn<kWhole, decltype(reads)::value, kPacks><<<blocks, kThreads, 0, stream>>>(launch);
          });
        }
      },
      a.q, a.k);
  check_launch("head_norm_rope_forward");
}

std::int64_t head_norm_scratch(const HeadRows& rows) {
  const Blocks blocks = blocks_of(rows);
  return (blocks.q + blocks.k) * rows.head_dim;
}

void head_norm_rope_backward(const HeadRows& rows, const HeadNormBackward& a, base::CudaStream stream) {
  const Blocks blocks = blocks_of(rows);
  dispatch_heads(
      rows,
      [&](auto element, auto whole, auto packs) {
        using T = decltype(element);
        using A = Accumulator<T>;
        constexpr int kPacks = decltype(packs)::value, kAtOnce = kHeads<false, kPacks>;
        const auto part = [&](const void* gradient, const void* weight, std::int64_t first, std::int64_t heads,
                              std::int64_t count) {
          const std::int64_t per_token = ceil_div(heads, kAtOnce);
          return Part<T>{.gradient = static_cast<const T*>(gradient),
                         .values = nullptr,
                         .weight = static_cast<const T*>(weight),
                         .to = static_cast<T*>(a.dstacked) + first * rows.head_dim,
                         .values_to = nullptr,
                         .first = first,
                         .groups = rows.tokens * per_token,
                         .heads = static_cast<std::int32_t>(heads),
                         .blocks = static_cast<std::int32_t>(count),
                         .per_token = static_cast<std::int32_t>(per_token)};
        };
        Backward<T> launch{.call = call_of<T>(rows, 0, rows.tokens),
                           .q = part(a.dq, rows.q_weight, 0, rows.q_heads, blocks.q),
                           .k = part(a.dk, rows.k_weight, rows.q_heads, rows.kv_heads, blocks.k),
                           .rstd = static_cast<const A*>(a.rstd),
                           .parts = static_cast<A*>(a.scratch)};
        launch.k.values = static_cast<const T*>(a.dv);
        launch.k.values_to = static_cast<T*>(a.dstacked) + (rows.q_heads + rows.kv_heads) * rows.head_dim;
        const auto count = static_cast<unsigned>(blocks.q + blocks.k);
        if (count > 0) turn_back<decltype(whole)::value, kPacks><<<count, kThreads, 0, stream>>>(launch);
        sum_columns(launch.parts, blocks.q, rows.head_dim, static_cast<A*>(a.q_dweight), false, stream);
        sum_columns(launch.parts + blocks.q * rows.head_dim, blocks.k, rows.head_dim, static_cast<A*>(a.k_dweight),
                    false, stream);
      },
      a.dq, a.dk, a.dv, a.dstacked);
  check_launch("head_norm_rope_backward");
}

}  // namespace tessera::ops::cuda
