// Launches that process shards of several parameters: each shard has blocks of its own.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "tessera/ops/packs.cuh"

namespace tessera::ops::cuda {

// Largest number of shards of a launch. Their arguments are kernel parameters, of which CUDA allows 32,764 bytes.
inline constexpr int kLaunchShards = 48;

// An array and the size of its elements in bytes.
struct TypedArray {
  const void* data = nullptr;
  std::size_t size = 0;
};
// Returns whether packs of this number of elements are aligned in all arrays. Null pointers are ignored.
inline bool packs_aligned(std::size_t pack, std::initializer_list<TypedArray> arrays) {
  return std::all_of(arrays.begin(), arrays.end(),
                     [pack](const TypedArray& array) { return is_aligned(array.data, pack * array.size); });
}

template <typename Shard>
struct ShardLaunch {
  Shard shards[kLaunchShards];
  std::uint32_t first_block[kLaunchShards];  // first block of each shard
  int count = 0;
  std::uint32_t blocks = 0;

  void append(const Shard& shard, std::uint32_t blocks_of_shard) {
    shards[count] = shard;
    first_block[count++] = blocks;
    blocks += blocks_of_shard;
  }
  // Returns the index of the shard of the calling block: the last shard whose first block is at or before this block.
  __device__ __forceinline__ int shard_of_block() const {
    int low = 0, high = count;
    while (low + 1 < high) {
      const int middle = (low + high) / 2;
      (first_block[middle] <= blockIdx.x ? low : high) = middle;
    }
    return low;
  }
};

// Divides the shards with elements into launches of shards with equal types. Calls append(launch, shard, types) for
// each shard and run(launch, types) for each launch.
template <typename Launch, typename Shard, typename TypesOf, typename Append, typename Run>
void launch_by_types(std::span<const Shard> shards, TypesOf&& types_of, Append&& append, Run&& run) {
  std::vector<decltype(types_of(shards[0]))> kinds;
  for (const Shard& shard : shards) {
    const auto types = types_of(shard);
    if (std::find(kinds.begin(), kinds.end(), types) == kinds.end()) kinds.push_back(types);
  }
  for (const auto& types : kinds) {
    Launch launch;
    const auto flush = [&] {
      if (launch.blocks > 0) run(launch, types);
      launch.count = 0;
      launch.blocks = 0;
    };
    for (const Shard& shard : shards) {
      if (shard.count == 0 || !(types_of(shard) == types)) continue;
      if (launch.count == kLaunchShards) flush();
      append(launch, shard, types);
    }
    flush();
  }
}

}  // namespace tessera::ops::cuda
