#include <algorithm>
#include <type_traits>
#include <vector>

#include "tessera/ops/optimizer/adamw_element.h"
#include "tessera/ops/packs.cuh"
#include "tessera/quant/cuda/vectors.cuh"

namespace tessera::ops::cuda {
namespace {

using quant::cuda::block_greatest;
using quant::cuda::raise;
using quant::cuda::rounded_to_bfloat16;
using quant::cuda::warp_greatest;

constexpr int kThreads = 256, kSteps = 4;  // packs per thread; two are loaded together
// Largest number of shards of a launch. Their arguments are kernel parameters, of which CUDA allows 32,764 bytes.
constexpr int kShards = 48;

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
struct Launch {
  Shard shards[kShards];
  std::uint32_t first_block[kShards];  // first block of each shard
  int count = 0;
  std::uint32_t blocks = 0;
};

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

// The logical positions of a shard, the key of its bits, and the number of the update.
struct Rounding {
  const LogicalIndices& indices;
  const base::PhiloxKey& key;
  std::int64_t update;
};

__device__ __noinline__ std::uint32_t word_of(base::PhiloxKey key, std::int64_t update, std::int64_t index) {
  return StateBits(key, update).word(index);
}
// Writes the words of the four elements of a pack, which begins at element `first` of the shard.
__device__ __forceinline__ void take_words(const Rounding& rounding, std::int64_t first, std::uint32_t (&words)[4]) {
  const LogicalIndices& indices = rounding.indices;
  const std::int64_t index = indices[first];
  if (index % 4 == 0 && (indices.row == 0 || first % indices.row + 4 <= indices.row)) {
    const auto q = static_cast<std::uint64_t>(index / 4), u = static_cast<std::uint64_t>(rounding.update);
    const base::PhiloxCounter all = base::philox({static_cast<std::uint32_t>(q), static_cast<std::uint32_t>(q >> 32),
                                                  static_cast<std::uint32_t>(u), static_cast<std::uint32_t>(u >> 32)},
                                                 rounding.key);
#pragma unroll
    for (int k = 0; k < 4; ++k) words[k] = all[static_cast<unsigned>(k)];
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) words[k] = word_of(rounding.key, rounding.update, indices[first + k]);
}

// Returns the greater magnitude. NaNs are ignored.
template <typename A>
__device__ __forceinline__ void take_magnitude(A& greatest, A value) {
  const A magnitude = std::fabs(value);
  greatest = magnitude > greatest ? magnitude : greatest;
}

// Returns the stored part of a master: the master, or its low half.
template <typename S, typename A>
__device__ __forceinline__ S stored_master(A master) {
  if constexpr (std::is_same_v<S, A>) {
    return master;
  } else {
    S low;
    low.bits = low_half(master);
    return low;
  }
}

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

// Returns the greatest magnitude of masters that are not updated.
template <int N, typename A>
__device__ __forceinline__ A greatest_master(const A* master, std::int64_t start, std::int64_t count) {
  A greatest = 0;
#pragma unroll 1
  for (int step = 0; step < kSteps; ++step) {
    const Pack<A, N> pack = load_pack<false, N>(master, start + step * kThreads * N, count);
#pragma unroll
    for (int k = 0; k < N; ++k) take_magnitude(greatest, pack[k]);
  }
  return greatest;
}

// Raises the amax of each matrix of a stack that the block touches. Each thread reads the masters that it updated. The
// function is not inlined, because its registers would lower the number of resident blocks.
template <int N, typename A>
__device__ __noinline__ void raise_amaxes(const Shard& shard, const A* master, std::int64_t start) {
#pragma unroll 1
  for (int step = 0; step < kSteps; ++step) {
    const std::int64_t first = start + step * kThreads * N;
    const Pack<A, N> pack = load_pack<false, N>(master, first, shard.count);  // 0 behind the shard
    const std::int64_t at = shard.amax_offset + first, matrix = at / shard.amax_elements;
    const std::int64_t of_first_lane = __shfl_sync(~0u, matrix, 0);  // every lane calls it
    if (__all_sync(~0u, matrix == of_first_lane && at + N <= (matrix + 1) * shard.amax_elements)) {
      A greatest = 0;
#pragma unroll
      for (int k = 0; k < N; ++k) take_magnitude(greatest, pack[k]);
      const float of_warp = warp_greatest(static_cast<float>(greatest));
      if (threadIdx.x % kWarp == 0) raise(shard.amax + matrix, rounded_to_bfloat16(of_warp));
    } else {
#pragma unroll 1
      for (int k = 0; k < N; ++k)
        raise(shard.amax + (at + k) / shard.amax_elements, rounded_to_bfloat16(static_cast<float>(std::fabs(pack[k]))));
    }
  }
}

template <typename A, typename S, typename M, typename G, typename W>
__global__ void __launch_bounds__(kThreads)
    update_shards(const __grid_constant__ Launch launch, const StepScalars* __restrict__ groups,
                  const Clip* __restrict__ clip) {
  __shared__ float scratch[kThreads / kWarp];
  const bool is_update = clip == nullptr || clip->applies != 0;
  int low = 0, high = launch.count;  // binary search for the last shard whose first block is at or before this block
  while (low + 1 < high) {
    const int middle = (low + high) / 2;
    (launch.first_block[middle] <= blockIdx.x ? low : high) = middle;
  }
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
  if constexpr (std::is_same_v<S, A>) {  // split masters have no amax
    if (shard.amax == nullptr) return;
    if (!is_update) greatest = greatest_master<N>(range.master, start, range.count);
    std::int64_t matrix = 0;
    if (shard.amax_elements != 0) {
      const std::int64_t first = shard.amax_offset + begin, end = shard.amax_offset + min(begin + kTile, shard.count);
      matrix = first / shard.amax_elements;
      if (end > (matrix + 1) * shard.amax_elements) return raise_amaxes<N>(shard, range.master, start);
    }
    const float of_block = block_greatest(static_cast<float>(greatest), scratch);
    if (threadIdx.x == 0) raise(shard.amax + matrix, rounded_to_bfloat16(of_block));
  }
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
  const auto pack = static_cast<std::size_t>(pack_of(types)), moments = pack * quant::size_of(types.moments);
  return is_aligned(b.master, pack * master_size(b)) && is_aligned(b.planes[0], moments) &&
         is_aligned(b.planes[1], moments) && is_aligned(b.gradient, pack * quant::size_of(types.gradient)) &&
         is_aligned(weight, pack * quant::size_of(types.weight));
}

void append(Launch& launch, const UpdateShard& b, const Types& types) {
  void* weight = b.weight == b.master ? nullptr : b.weight;
  launch.shards[launch.count] = {.master = b.master,
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
                                 .aligned = all_aligned(b, types, weight)};
  launch.first_block[launch.count++] = launch.blocks;
  launch.blocks += blocks_for(b.count, kThreads * kSteps * pack_of(types));
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
  std::vector<Types> kinds;
  for (const UpdateShard& shard : shards) {
    check_shard(shard, 2);
    if (has_bf16_moments && shard.master_type != quant::DType::fp32)
      base::fail("adamw: expected masters in fp32 for moments in bf16");
    const Types types = types_of(shard, has_bf16_moments);
    if (std::find(kinds.begin(), kinds.end(), types) == kinds.end()) kinds.push_back(types);
  }
  for (const Types& types : kinds) {
    Launch launch;
    const auto flush = [&] {
      if (launch.blocks > 0) run(launch, types, scalars, clip, stream);
      launch.count = 0;
      launch.blocks = 0;
    };
    for (const UpdateShard& shard : shards) {
      if (shard.count == 0 || types_of(shard, has_bf16_moments) != types) continue;
      if (launch.count == kShards) flush();
      append(launch, shard, types);
    }
    flush();
  }
}

}  // namespace tessera::ops::cuda
