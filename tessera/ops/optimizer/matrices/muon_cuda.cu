#include <algorithm>
#include <type_traits>

#include "tessera/ops/optimizer/matrices/muon_element.h"
#include "tessera/ops/optimizer/shards/shard_launch.cuh"
#include "tessera/ops/optimizer/shards/shard_masters.cuh"
#include "tessera/ops/optimizer/shards/state_words.cuh"

namespace tessera::ops::cuda {
namespace {

// Elements of a pack, for the arithmetic type A. A pack of A has the size of one access.
template <typename A>
inline constexpr int kMuonPack = kAccessBytes / static_cast<int>(sizeof(A));

std::uint32_t blocks_of(std::int64_t count, quant::DType master) {
  const std::int64_t pack = kAccessBytes / static_cast<std::int64_t>(quant::size_of(master));
  return blocks_for(count, kShardThreads * kShardSteps * pack);
}

// ---- directions

struct Directions {
  const void* gradient;
  void *plane, *direction;
  std::int64_t count;
  LogicalIndices indices;
  base::PhiloxKey key;
  int group;
  bool aligned;
};
struct DirectionTypes {
  quant::DType master, plane, gradient, direction;
  bool operator==(const DirectionTypes&) const = default;
};

// A is the type of the arithmetic, M of the momentum, G of the gradient, D of the directions.
template <bool kWhole, typename A, typename M, typename G, typename D>
__device__ __forceinline__ void directions_of(const Directions& shard, const MuonFactors<A>& next, std::int64_t number,
                                              std::int64_t start) {
  constexpr int N = kMuonPack<A>;
  constexpr bool kIsRounded = !std::is_same_v<A, M>;
  auto* const momentum = static_cast<M*>(shard.plane);
#pragma unroll 2
  for (int step = 0; step < kShardSteps; ++step) {
    const std::int64_t first = start + step * kShardThreads * N;
    const auto gradient = load_pack<kWhole, N>(static_cast<const G*>(shard.gradient), first, shard.count);
    auto plane = load_pack<kWhole, N>(momentum, first, shard.count);
    A u[N];
    std::uint32_t words[4] = {};
    if constexpr (kIsRounded) take_words({.indices = shard.indices, .key = shard.key, .update = number}, first, words);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const MuonDirection<A> result = next(static_cast<A>(plane[k]), static_cast<A>(gradient[k]));
      u[k] = result.direction;
      if constexpr (kIsRounded)
        plane.set(k, round_stochastically(result.momentum, words[k % 4]));
      else
        plane.set(k, result.momentum);
    }
    store_pack<kWhole>(momentum, first, shard.count, plane);
    store_pack<kWhole>(static_cast<D*>(shard.direction), first, shard.count, rounded<D>(u));
  }
}

template <typename A, typename M, typename G, typename D>
__global__ void __launch_bounds__(kShardThreads)
    compute_directions(const __grid_constant__ ShardLaunch<Directions> launch, const MuonScalars* __restrict__ groups,
                       const Clip* __restrict__ clip) {
  if (clip != nullptr && clip->applies == 0) return;
  const int index = launch.shard_of_block();
  const Directions& shard = launch.shards[index];
  constexpr int kTile = kShardThreads * kShardSteps * kMuonPack<A>;
  const std::int64_t begin = std::int64_t{blockIdx.x - launch.first_block[index]} * kTile;
  const std::int64_t start = begin + std::int64_t{threadIdx.x} * kMuonPack<A>;
  const MuonScalars& scalars = groups[shard.group];
  const MuonFactors<A> next(scalars, clip == nullptr ? 1.0 : clip->factor);
  if (shard.aligned && begin + kTile <= shard.count)
    directions_of<true, A, M, G, D>(shard, next, scalars.number, start);
  else
    directions_of<false, A, M, G, D>(shard, next, scalars.number, start);
}

// ---- updates

struct Masters {
  void *master, *weight;
  const void* x;
  float* amax;
  std::int64_t amax_elements, amax_offset;
  std::int64_t count;
  double factor;
  int group;
  bool aligned;
};
struct MasterTypes {
  quant::DType master, x, weight;
  bool is_split = false;
  bool operator==(const MasterTypes&) const = default;
};

// S is the type in which masters are stored, as in AdamW; X that of the iterated matrices; W that of the weights.
template <bool kWhole, typename A, typename S, typename X, typename W>
__device__ __forceinline__ A update_masters(const Masters& shard, A decay, A rate, std::int64_t start) {
  constexpr int N = kMuonPack<A>;
  constexpr bool kIsSplit = !std::is_same_v<A, S>;
  constexpr bool kIsRepresentable = std::is_same_v<A, float> && std::is_same_v<W, quant::bfloat16>;
  auto* const masters = static_cast<S*>(shard.master);
  auto* const weights = static_cast<W*>(shard.weight);
  A greatest = 0;
#pragma unroll 2
  for (int step = 0; step < kShardSteps; ++step) {
    const std::int64_t first = start + step * kShardThreads * N;
    const auto x = load_pack<kWhole, N>(static_cast<const X*>(shard.x), first, shard.count);
    auto stored = load_pack<kWhole, N>(masters, first, shard.count);
    [[maybe_unused]] Pack<W, N> weight;
    if constexpr (kIsSplit) weight = load_pack<kWhole, N>(weights, first, shard.count);
    A updated[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      A old;
      if constexpr (kIsSplit)
        old = joined_master(weight.get(k), stored.get(k).bits);
      else
        old = stored[k];
      updated[k] = muon_master(old, static_cast<A>(x[k]), decay, rate);
      if constexpr (kIsRepresentable) updated[k] = representable(updated[k]);
      take_magnitude(greatest, updated[k]);
      stored.set(k, stored_master<S>(updated[k]));
    }
    store_pack<kWhole>(masters, first, shard.count, stored);
    if (kIsSplit || weights != nullptr) store_pack<kWhole>(weights, first, shard.count, rounded<W>(updated));
  }
  return greatest;
}

template <typename A, typename S, typename X, typename W>
__global__ void __launch_bounds__(kShardThreads)
    apply_matrices(const __grid_constant__ ShardLaunch<Masters> launch, const MuonScalars* __restrict__ groups,
                   const Clip* __restrict__ clip) {
  __shared__ float scratch[kShardThreads / kWarp];
  const bool is_update = clip == nullptr || clip->applies != 0;
  const int index = launch.shard_of_block();
  const Masters& shard = launch.shards[index];
  constexpr int kTile = kShardThreads * kShardSteps * kMuonPack<A>;
  const std::int64_t begin = std::int64_t{blockIdx.x - launch.first_block[index]} * kTile;
  const std::int64_t start = begin + std::int64_t{threadIdx.x} * kMuonPack<A>;
  A greatest = 0;
  if (is_update) {
    const MuonScalars& scalars = groups[shard.group];
    const A decay = static_cast<A>(scalars.decay), rate = static_cast<A>(scalars.rate * shard.factor);
    greatest = shard.aligned && begin + kTile <= shard.count
                   ? update_masters<true, A, S, X, W>(shard, decay, rate, start)
                   : update_masters<false, A, S, X, W>(shard, decay, rate, start);
  }
  if constexpr (std::is_same_v<S, A>)  // split masters have no amax
    if (shard.amax != nullptr)
      raise_amax_of_block<kMuonPack<A>>(shard, static_cast<const A*>(shard.master), begin,
                                        is_update ? &greatest : nullptr, scratch);
}

}  // namespace

void muon_directions(std::span<const DirectionShard> shards, const MuonScalars* scalars, const Clip* clip,
                     base::CudaStream stream, bool has_bf16_momentum) {
  for (const DirectionShard& shard : shards) {
    check_shard(shard);
    if (has_bf16_momentum && shard.master_type != quant::DType::fp32)
      base::fail("muon: expected masters in fp32 for a momentum in bf16");
  }
  using Launch = ShardLaunch<Directions>;
  const auto types_of = [&](const DirectionShard& shard) {
    return DirectionTypes{shard.master_type, has_bf16_momentum ? quant::DType::bf16 : shard.master_type,
                          shard.gradient_type, shard.direction_type};
  };
  const auto append = [](Launch& launch, const DirectionShard& shard, const DirectionTypes& types) {
    const std::size_t pack = kAccessBytes / quant::size_of(types.master);
    launch.append({.gradient = shard.gradient,
                   .plane = shard.plane,
                   .direction = shard.direction,
                   .count = shard.count,
                   .indices = shard.indices,
                   .key = shard.rounding_key,
                   .group = shard.group,
                   .aligned = packs_aligned(pack, {{shard.gradient, quant::size_of(types.gradient)},
                                                   {shard.plane, quant::size_of(types.plane)},
                                                   {shard.direction, quant::size_of(types.direction)}})},
                  blocks_of(shard.count, types.master));
  };
  const auto run = [&](const Launch& launch, const DirectionTypes& types) {
    const auto with = [&](auto master, auto momentum) {
      dispatch_floating(types.gradient, [&](auto gradient) {
        dispatch_floating(types.direction, [&](auto direction) {
          using A = decltype(master);
          // Accesses of a thread have at most 16 bytes.
          if constexpr (sizeof gradient > sizeof(A) || sizeof direction > sizeof(A))
            base::fail("muon: expected gradients and directions of at most the master's size");
          else
            compute_directions<A, decltype(momentum), decltype(gradient), decltype(direction)>
                <<<launch.blocks, kShardThreads, 0, stream>>>(launch, scalars, clip);
        });
      });
    };
    if (types.plane != types.master)
      with(float{}, quant::bfloat16{});
    else
      dispatch_accumulator(types.master, [&](auto master) { with(master, master); });
    check_launch("muon directions");
  };
  launch_by_types<Launch>(shards, types_of, append, run);
}

void muon_update(std::span<const UpdateShard> shards, const MuonScalars* scalars, const Clip* clip,
                 base::CudaStream stream) {
  for (const UpdateShard& shard : shards) check_shard(shard, 0);
  using Launch = ShardLaunch<Masters>;
  const auto types_of = [](const UpdateShard& shard) {
    return MasterTypes{shard.master_type, shard.gradient_type, shard.weight_type, shard.is_split};
  };
  const auto append = [](Launch& launch, const UpdateShard& shard, const MasterTypes& types) {
    const std::size_t pack = kAccessBytes / quant::size_of(types.master);
    void* const weight = shard.weight == shard.master ? nullptr : shard.weight;
    launch.append({.master = shard.master,
                   .weight = weight,
                   .x = shard.gradient,
                   .amax = shard.amax,
                   .amax_elements = shard.amax_elements,
                   .amax_offset = shard.amax_offset,
                   .count = shard.count,
                   .factor = shard.factor,
                   .group = shard.group,
                   .aligned = packs_aligned(pack, {{shard.master, master_size(shard)},
                                                   {shard.gradient, quant::size_of(types.x)},
                                                   {weight, quant::size_of(types.weight)}})},
                  blocks_of(shard.count, types.master));
  };
  const auto run = [&](const Launch& launch, const MasterTypes& types) {
    const auto typed = [&](auto master, auto stored, auto x, auto weight) {
      using A = decltype(master);
      if constexpr (sizeof x > sizeof(A) || sizeof weight > sizeof(A))
        base::fail("muon: expected matrices and weights of at most the master's size");
      else
        apply_matrices<A, decltype(stored), decltype(x), decltype(weight)>
            <<<launch.blocks, kShardThreads, 0, stream>>>(launch, scalars, clip);
    };
    dispatch_accumulator(types.master, [&](auto master) {
      dispatch_floating(types.x, [&](auto x) {
        if constexpr (std::is_same_v<decltype(master), float>)
          if (types.is_split) return typed(master, quant::bfloat16{}, x, quant::bfloat16{});
        dispatch_floating(types.weight, [&](auto weight) { typed(master, master, x, weight); });
      });
    });
    check_launch("muon");
  };
  launch_by_types<Launch>(shards, types_of, append, run);
}

}  // namespace tessera::ops::cuda
