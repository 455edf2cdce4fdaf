#include <algorithm>
#include <type_traits>

#include "tessera/ops/optimizer/adamw_element.h"
#include "tessera/ops/optimizer/shards/shard_launch.cuh"
#include "tessera/ops/optimizer/shards/shard_masters.cuh"
#include "tessera/ops/optimizer/shards/state_words.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = kShardThreads, kSteps = kShardSteps;  // two packs of a thread are loaded together

struct Shard {
  void *master, *weight;
  const void* gradient;
  void *exp_avg, *exp_avg_sq;
  float* amax;
  std::int64_t amax_elements, amax_offset;
  std::int64_t count;
  LogicalIndices indices;
  base::PhiloxKey key;
  int group;
  bool aligned;
};
using Launch = ShardLaunch<Shard>;

// Returns the number of elements of a pack. A pack of the widest type has the size of one access.
constexpr int pack_of(std::size_t master, std::size_t gradient, std::size_t weight) {
  return kAccessBytes / static_cast<int>(std::max({master, gradient, weight}));
}

// A is the type of the arithmetic and of the masters, S the type in which masters are stored: A, or bfloat16 for the
// low halves of split masters, which are moved like bf16 numbers. M is the type of the moments.
template <typename A, typename S, typename M, typename G, typename W>
struct Range {
  S* __restrict__ master;
  W* __restrict__ weight;
  const G* __restrict__ gradient;
  M* __restrict__ exp_avg, * __restrict__ exp_avg_sq;
  std::int64_t count;
};

// Returns the greatest magnitude of the updated masters.
template <bool kWhole, typename A, typename S, typename M, typename G, typename W>
__device__ __forceinline__ A update_packs(const TypedScalars<A>& scalars, const Range<A, S, M, G, W>& range,
                                          const Rounding& rounding, std::int64_t start) {
  constexpr int N = pack_of(sizeof(A), sizeof(G), sizeof(W)), kAtOnce = 2;
  constexpr bool kIsRounded = !std::is_same_v<A, M>;
  constexpr bool kIsSplit = !std::is_same_v<A, S>;
  constexpr bool kIsRepresentable = std::is_same_v<A, float> && std::is_same_v<W, quant::bfloat16>;
  static_assert(!kIsRounded || N == 4);
  static_assert(!kIsSplit || kIsRepresentable);
  A greatest = 0;
#pragma unroll 1
  for (int step = 0; step < kSteps; step += kAtOnce) {
    Pack<S, N> master[kAtOnce];
    [[maybe_unused]] Pack<W, N> weight[kIsSplit ? kAtOnce : 1];
    Pack<M, N> exp_avg[kAtOnce], exp_avg_sq[kAtOnce];
    Pack<G, N> gradient[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const std::int64_t first = start + (step + i) * kThreads * N;
      gradient[i] = load_pack<kWhole, N>(range.gradient, first, range.count);
      master[i] = load_pack<kWhole, N>(range.master, first, range.count);
      if constexpr (kIsSplit) weight[i] = load_pack<kWhole, N>(range.weight, first, range.count);
      exp_avg[i] = load_pack<kWhole, N>(range.exp_avg, first, range.count);
      exp_avg_sq[i] = load_pack<kWhole, N>(range.exp_avg_sq, first, range.count);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const std::int64_t first = start + (step + i) * kThreads * N;
      A rounded_master[N];
      std::uint32_t words[4] = {};
      if constexpr (kIsRounded) take_words(rounding, first, words);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        A old_master;
        if constexpr (kIsSplit)
          old_master = joined_master(weight[i].get(k), master[i].get(k).bits);
        else
          old_master = master[i][k];
        AdamWElement<A> next =
            updated(scalars, {old_master, exp_avg[i][k], exp_avg_sq[i][k]}, static_cast<A>(gradient[i][k]));
        if constexpr (kIsRepresentable) next.master = representable(next.master);
        rounded_master[k] = next.master;
        take_magnitude(greatest, next.master);
        master[i].set(k, stored_master<S>(next.master));
        if constexpr (kIsRounded) {
          exp_avg[i].set(k, round_stochastically(next.exp_avg, words[k % 4]));
          exp_avg_sq[i].set(k, round_stochastically(next.exp_avg_sq, words[k % 4] >> 16));
        } else {
          exp_avg[i].set(k, next.exp_avg);
          exp_avg_sq[i].set(k, next.exp_avg_sq);
        }
      }
      store_pack<kWhole>(range.master, first, range.count, master[i]);
      store_pack<kWhole>(range.exp_avg, first, range.count, exp_avg[i]);
      store_pack<kWhole>(range.exp_avg_sq, first, range.count, exp_avg_sq[i]);
      if (kIsSplit || range.weight != nullptr)
        store_pack<kWhole>(range.weight, first, range.count, rounded<W>(rounded_master));
    }
  }
  return greatest;
}

template <typename A, typename S, typename M, typename G, typename W>
__global__ void __launch_bounds__(kThreads)
    update_shards(const __grid_constant__ Launch launch, const StepScalars* __restrict__ groups,
                  const Clip* __restrict__ clip) {
  __shared__ float scratch[kThreads / kWarp];
  const bool is_update = clip == nullptr || clip->applies != 0;
  const int low = launch.shard_of_block();
  const Shard& shard = launch.shards[low];
  if (!is_update && shard.amax == nullptr) return;
  constexpr int N = pack_of(sizeof(A), sizeof(G), sizeof(W)), kTile = kThreads * kSteps * N;
  const std::int64_t begin = std::int64_t{blockIdx.x - launch.first_block[low]} * kTile;
  const StepScalars& of_group = groups[shard.group];
  const TypedScalars<A> scalars(of_group, clip == nullptr ? 1.0 : clip->factor);
  const Range<A, S, M, G, W> range{.master = static_cast<S*>(shard.master),
                                   .weight = static_cast<W*>(shard.weight),
                                   .gradient = static_cast<const G*>(shard.gradient),
                                   .exp_avg = static_cast<M*>(shard.exp_avg),
                                   .exp_avg_sq = static_cast<M*>(shard.exp_avg_sq),
                                   .count = shard.count};
  const Rounding rounding{.indices = shard.indices, .key = shard.key, .update = of_group.number};
  const std::int64_t start = begin + std::int64_t{threadIdx.x} * N;
  const bool is_whole = shard.aligned && begin + kTile <= shard.count;
  A greatest = 0;
  if (is_update)
    greatest = is_whole ? update_packs<true>(scalars, range, rounding, start)
                        : update_packs<false>(scalars, range, rounding, start);
  if constexpr (std::is_same_v<S, A>)  // split masters have no amax
    if (shard.amax != nullptr)
      raise_amax_of_block<N>(shard, range.master, begin, is_update ? &greatest : nullptr, scratch);
}

struct Types {
  quant::DType master, moments, gradient, weight;
  bool is_split = false;
  bool operator==(const Types&) const = default;
};
Types types_of(const UpdateShard& b, bool has_bf16_moments) {
  return {b.master_type, has_bf16_moments ? quant::DType::bf16 : b.master_type, b.gradient_type, b.weight_type,
          b.is_split};
}

int pack_of(const Types& types) {
  return pack_of(quant::size_of(types.master), quant::size_of(types.gradient), quant::size_of(types.weight));
}

bool all_aligned(const UpdateShard& b, const Types& types, const void* weight) {
  const std::size_t moments = quant::size_of(types.moments);
  return packs_aligned(static_cast<std::size_t>(pack_of(types)), {{b.master, master_size(b)},
                                                                  {b.planes[0], moments},
                                                                  {b.planes[1], moments},
                                                                  {b.gradient, quant::size_of(types.gradient)},
                                                                  {weight, quant::size_of(types.weight)}});
}

void append(Launch& launch, const UpdateShard& b, const Types& types) {
  void* weight = b.weight == b.master ? nullptr : b.weight;
  launch.append({.master = b.master,
                 .weight = weight,
                 .gradient = b.gradient,
                 .exp_avg = b.planes[0],
                 .exp_avg_sq = b.planes[1],
                 .amax = b.amax,
                 .amax_elements = b.amax_elements,
                 .amax_offset = b.amax_offset,
                 .count = b.count,
                 .indices = b.indices,
                 .key = b.rounding_key,
                 .group = b.group,
                 .aligned = all_aligned(b, types, weight)},
                blocks_for(b.count, kThreads * kSteps * pack_of(types)));
}

void run(const Launch& launch, const Types& types, const StepScalars* scalars, const Clip* clip,
         base::CudaStream stream) {
  const auto run_typed = [&](auto master, auto stored, auto moments, auto gradient, auto weight) {
    // Words of random bits are made for the four elements of a pack, which types of 8 bytes do not have.
    constexpr bool kIsRounded = !std::is_same_v<decltype(master), decltype(moments)>;
    if constexpr (kIsRounded && pack_of(sizeof master, sizeof gradient, sizeof weight) != 4)
      base::fail("adamw: expected gradients and weights in bf16 or fp32 beside moments in bf16");
    else
      update_shards<decltype(master), decltype(stored), decltype(moments), decltype(gradient), decltype(weight)>
          <<<launch.blocks, kThreads, 0, stream>>>(launch, scalars, clip);
  };
  const auto run_with = [&](auto master, auto moments) {
    dispatch_floating(types.gradient, [&](auto gradient) {
      if constexpr (std::is_same_v<decltype(master), float>)
        if (types.is_split) return run_typed(master, quant::bfloat16{}, moments, gradient, quant::bfloat16{});
      dispatch_floating(types.weight, [&](auto weight) { run_typed(master, master, moments, gradient, weight); });
    });
  };
  if (types.moments != types.master)
    run_with(float{}, quant::bfloat16{});
  else
    dispatch_accumulator(types.master, [&](auto master) { run_with(master, master); });
  check_launch("adamw");
}

}  // namespace

void adamw(std::span<const UpdateShard> shards, const StepScalars* scalars, const Clip* clip, base::CudaStream stream,
           bool has_bf16_moments) {
  for (const UpdateShard& shard : shards) {
    check_shard(shard, 2);
    if (has_bf16_moments && shard.master_type != quant::DType::fp32)
      base::fail("adamw: expected masters in fp32 for moments in bf16");
  }
  launch_by_types<Launch>(
      shards, [&](const UpdateShard& shard) { return types_of(shard, has_bf16_moments); }, append,
      [&](const Launch& launch, const Types& types) { run(launch, types, scalars, clip, stream); });
}

}  // namespace tessera::ops::cuda
