#include "tessera/ops/packs.cuh"
#include "tessera/ops/rope/rope_angles.cuh"
#include "tessera/ops/rope/rope_kernels.h"

namespace tessera::ops::cuda {
namespace {

// Number of heads of a thread; the heads share the loaded angles.
constexpr int kThreads = 256, kHeads = 4;
constexpr std::int64_t kItems = std::int64_t{1} << 30;  // items of a launch, limited by Divisor

// An item covers kHeads heads of a token: a pack of the first half of each head, and the matching pack of the second
// half.
template <typename T>
struct Heads {
  AngleTable<Accumulator<T>> angles;
  T *stacked, *q, *k, *v;  // forward reads stacked and writes the others; backward does the reverse
  std::int32_t q_heads, kv_heads;
  std::uint32_t items;
  Divisor packs, groups;  // packs in half a head; groups of kHeads heads in a token
};

// One head of one token, in the stacked rows and in its own tensor. `turns` is false for v.
template <typename T>
struct Head {
  T *stacked, *part;
  bool turns;
};
template <typename T>
__device__ __forceinline__ Head<T> head_of(const Heads<T>& a, std::int64_t token, int head) {
  const std::int64_t size = 2 * a.angles.half;
  T* stacked = a.stacked + (token * (a.q_heads + 2 * a.kv_heads) + head) * size;
  if (head < a.q_heads) return {stacked, a.q + (token * a.q_heads + head) * size, true};
  head -= a.q_heads;
  if (head < a.kv_heads) return {stacked, a.k + (token * a.kv_heads + head) * size, true};
  return {stacked, a.v + (token * a.kv_heads + head - a.kv_heads) * size, false};
}

template <bool kWhole, bool kForward, typename T>
__global__ void __launch_bounds__(kThreads) turn_heads(const Heads<T> a) {
  constexpr int N = kPack<T>;
  const std::uint32_t item = blockIdx.x * kThreads + threadIdx.x;
  if (item >= a.items) return;
  const std::uint32_t row = a.packs.quotient(item), token = a.groups.quotient(row);
  const std::int64_t first = std::int64_t{a.packs.remainder(item, row)} * N;
  const std::int64_t half = a.angles.half;
  const int begin = static_cast<int>(a.groups.remainder(row, token)) * kHeads, heads = a.q_heads + 2 * a.kv_heads;
  Pack<T, N> left[kHeads], right[kHeads];
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (begin + i >= heads) break;
    const Head<T> head = head_of(a, token, begin + i);
    const T* from = kForward ? head.stacked : head.part;
    left[i] = load_pack<kWhole, N>(from, first, half);
    right[i] = load_pack<kWhole, N>(from + half, first, half);
  }
  Angles<kForward, Accumulator<T>, N> angles;
  if (begin < a.q_heads + a.kv_heads) angles.template load<kWhole>(a.angles, token, first);
#pragma unroll
  for (int i = 0; i < kHeads; ++i) {
    if (begin + i >= heads) break;
    const Head<T> head = head_of(a, token, begin + i);
    if (head.turns) angles.turn(left[i], right[i]);
    T* to = kForward ? head.part : head.stacked;
    store_pack<kWhole>(to, first, half, left[i]);
    store_pack<kWhole>(to + half, first, half, right[i]);
  }
}

template <bool kForward, typename Arguments>
void run(const Arguments& a, base::CudaStream stream) {
  const std::int64_t heads = a.q_heads + 2 * a.kv_heads, half = a.head_dim / 2;
  if (heads == 0) return;
  dispatch_floating(a.type, [&](auto element) {
    using T = decltype(element);
    using A = Accumulator<T>;
    const std::int64_t packs = ceil_div(half, kPack<T>), groups = ceil_div(heads, kHeads);
    const std::int64_t most = std::max<std::int64_t>(1, kItems / (packs * groups));
    const auto mutable_at = [](const void* data, std::int64_t at) {
      return static_cast<T*>(const_cast<void*>(data)) + at;
    };
    for (std::int64_t token = 0; token < a.tokens; token += most) {
      const std::int64_t items = std::min(most, a.tokens - token) * groups * packs;
      const Heads<T> launch{.angles = {.positions = a.positions + token,
                                       .cosine = static_cast<const A*>(a.cosine),
                                       .sine = static_cast<const A*>(a.sine),
                                       .rows = a.table_rows,
                                       .half = half},
                            .stacked = mutable_at(a.stacked, token * heads * a.head_dim),
                            .q = mutable_at(a.q, token * a.q_heads * a.head_dim),
                            .k = mutable_at(a.k, token * a.kv_heads * a.head_dim),
                            .v = mutable_at(a.v, token * a.kv_heads * a.head_dim),
                            .q_heads = static_cast<std::int32_t>(a.q_heads),
                            .kv_heads = static_cast<std::int32_t>(a.kv_heads),
                            .items = static_cast<std::uint32_t>(items),
                            .packs = Divisor(packs),
                            .groups = Divisor(groups)};
      dispatch_bool(rows_whole<T>(half, a.stacked, a.q, a.k, a.v, a.cosine, a.sine), [&](auto whole) {
        turn_heads<decltype(whole)::value, kForward><<<blocks_for(items, kThreads), kThreads, 0, stream>>>(launch);
      });
    }
  });
}

}  // namespace

void split_rope_forward(const SplitRopeForward& a, base::CudaStream stream) {
  run<true>(a, stream);
  check_launch("split_rope_forward");
}

void split_rope_backward(const SplitRopeBackward& a, base::CudaStream stream) {
  run<false>(a, stream);
  check_launch("split_rope_backward");
}

}  // namespace tessera::ops::cuda
