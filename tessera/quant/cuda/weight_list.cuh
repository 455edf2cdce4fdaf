// One kernel launch for several weights. Each weight has a range of thread blocks. The list of weights is a kernel
// parameter.
#pragma once
#include <cstdint>
#include <span>

#include "tessera/quant/cuda/vectors.cuh"
#include "tessera/quant/cuda_table.h"

namespace tessera::quant::cuda {

template <typename Item>
struct WeightList {
  Item items[kWeightsOfLaunch];
  std::uint32_t first_block[kWeightsOfLaunch];
  int count = 0;
  std::int64_t blocks = 0;

  // Returns the index of the item that `block` works on.
  __device__ int item_of(unsigned block) const {
    int low = 0, high = count;
    while (low + 1 < high) {
      const int middle = (low + high) / 2;
      (first_block[middle] <= block ? low : high) = middle;
    }
    return low;
  }
};

// Divides the weights into lists of at most kWeightsOfLaunch weights, and calls launch(list, blocks) for each list.
// item_of(weight) returns the kernel's arguments for a weight. blocks_of(item) returns the item's number of thread
// blocks. Items without blocks are skipped.
template <typename Item, typename Weight, typename ItemOf, typename BlocksOf, typename Launch>
void for_each_list(std::span<const Weight> weights, ItemOf item_of, BlocksOf blocks_of, Launch launch) {
  static_assert(sizeof(WeightList<Item>) <= 4096);
  WeightList<Item> list;
  const auto flush = [&] {
    if (list.blocks > 0) launch(list, checked_blocks(list.blocks));
    TESSERA_CUDA_CHECK(cudaGetLastError());
    list.count = 0;
    list.blocks = 0;
  };
  for (const Weight& weight : weights) {
    const Item item = item_of(weight);
    const std::int64_t blocks = blocks_of(item);
    if (blocks == 0) continue;
    if (list.count == kWeightsOfLaunch) flush();
    list.items[list.count] = item;
    list.first_block[list.count++] = checked_blocks(list.blocks);
    list.blocks += blocks;
  }
  flush();
}

}  // namespace tessera::quant::cuda
