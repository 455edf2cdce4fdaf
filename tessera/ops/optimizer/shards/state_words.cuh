// The random words of state that is rounded stochastically (state_rounding.h), four elements at a time.
#pragma once
#include "tessera/ops/optimizer/state_rounding.h"

namespace tessera::ops::cuda {

// The logical positions of a shard, the key of its bits, and the number of the update.
struct Rounding {
  const LogicalIndices& indices;
  const base::PhiloxKey& key;
  std::int64_t update;
};

// Not inlined, because only packs at the border of a group of four elements call it.
static __device__ __noinline__ std::uint32_t word_of(base::PhiloxKey key, std::int64_t update, std::int64_t index) {
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

}  // namespace tessera::ops::cuda
