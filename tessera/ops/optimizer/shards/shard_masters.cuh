// Masters in the kernels that update shards: split masters, and the amaxes of masters.
#pragma once
#include <cmath>
#include <type_traits>

#include "tessera/ops/optimizer/split_master.h"
#include "tessera/ops/packs.cuh"
#include "tessera/quant/cuda/vectors.cuh"

namespace tessera::ops::cuda {

// A block of kShardThreads threads processes kShardThreads * kShardSteps packs.
inline constexpr int kShardThreads = 256, kShardSteps = 4;

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

// Replaces `greatest` by a greater magnitude. NaNs are ignored.
template <typename A>
__device__ __forceinline__ void take_magnitude(A& greatest, A value) {
  const A magnitude = std::fabs(value);
  greatest = magnitude > greatest ? magnitude : greatest;
}

// Returns the greatest magnitude of this thread's masters, which begin at element `start`.
template <int N, typename A>
__device__ __forceinline__ A greatest_master(const A* master, std::int64_t start, std::int64_t count) {
  A greatest = 0;
#pragma unroll 1
  for (int step = 0; step < kShardSteps; ++step) {
    const Pack<A, N> pack = load_pack<false, N>(master, start + step * kShardThreads * N, count);
#pragma unroll
    for (int k = 0; k < N; ++k) take_magnitude(greatest, pack[k]);
  }
  return greatest;
}

// Raises the amax of each matrix of a stack that the block touches. Each thread reads the masters that it updated. The
// function is not inlined, because its registers would lower the number of resident blocks.
template <int N, typename A, typename Shard>
__device__ __noinline__ void raise_amaxes(const Shard& shard, const A* master, std::int64_t start) {
  using quant::cuda::raise, quant::cuda::rounded_to_bfloat16;
#pragma unroll 1
  for (int step = 0; step < kShardSteps; ++step) {
    const std::int64_t first = start + step * kShardThreads * N;
    const Pack<A, N> pack = load_pack<false, N>(master, first, shard.count);  // 0 behind the shard
    const std::int64_t at = shard.amax_offset + first, matrix = at / shard.amax_elements;
    const std::int64_t of_first_lane = __shfl_sync(~0u, matrix, 0);  // every lane calls it
    if (__all_sync(~0u, matrix == of_first_lane && at + N <= (matrix + 1) * shard.amax_elements)) {
      A greatest = 0;
#pragma unroll
      for (int k = 0; k < N; ++k) take_magnitude(greatest, pack[k]);
      const float of_warp = quant::cuda::warp_greatest(static_cast<float>(greatest));
      if (threadIdx.x % kWarp == 0) raise(shard.amax + matrix, rounded_to_bfloat16(of_warp));
    } else {
#pragma unroll 1
      for (int k = 0; k < N; ++k)
        raise(shard.amax + (at + k) / shard.amax_elements, rounded_to_bfloat16(static_cast<float>(std::fabs(pack[k]))));
    }
  }
}

// Raises the amaxes of a shard by the masters of a block, which begin at element `begin`. `greatest` is the greatest
// magnitude of this thread's masters; null: the function reads the masters. `scratch` has one number for each warp. All
// threads of the block take part.
template <int N, typename A, typename Shard>
__device__ __forceinline__ void raise_amax_of_block(const Shard& shard, const A* master, std::int64_t begin,
                                                    const A* greatest, float* scratch) {
  constexpr int kTile = kShardThreads * kShardSteps * N;
  const std::int64_t start = begin + std::int64_t{threadIdx.x} * N;
  const A of_thread = greatest != nullptr ? *greatest : greatest_master<N>(master, start, shard.count);
  std::int64_t matrix = 0;
  if (shard.amax_elements != 0) {
    const std::int64_t first = shard.amax_offset + begin, end = shard.amax_offset + min(begin + kTile, shard.count);
    matrix = first / shard.amax_elements;
    if (end > (matrix + 1) * shard.amax_elements) return raise_amaxes<N>(shard, master, start);
  }
  const float of_block = quant::cuda::block_greatest(static_cast<float>(of_thread), scratch);
  if (threadIdx.x == 0) quant::cuda::raise(shard.amax + matrix, quant::cuda::rounded_to_bfloat16(of_block));
}

}  // namespace tessera::ops::cuda
