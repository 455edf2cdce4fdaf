// Dropout factors for the columns of a pack (a vector of adjacent elements that a thread loads at once).
#pragma once
#include "tessera/ops/dropout.h"
#include "tessera/ops/packs.cuh"

namespace tessera::ops::cuda {

template <typename T, int N>
struct Factors {
  Accumulator<T> values[N];
};

// Returns the dropout factors of the N columns that start at `first`. `first` must be a multiple of N.
template <typename T, int N>
__device__ __forceinline__ Factors<T, N> factors_of(const DropoutMask& mask, std::int64_t row, std::int64_t first) {
  constexpr int kColumns = DropoutMask::kColumns;
  using A = Accumulator<T>;
  const std::uint32_t step = mask.step();
  const auto group = static_cast<std::uint32_t>(first / kColumns);
  Factors<T, N> result;
  A factors[kColumns];
  if constexpr (N < kColumns) {
    static_assert(2 * N == kColumns);
    mask.factors(step, row, group, factors);
    const bool is_first = first % kColumns == 0;
#pragma unroll
    for (int i = 0; i < N; ++i) result.values[i] = is_first ? factors[i] : factors[N + i];
  } else {
#pragma unroll
    for (int i = 0; i < N; i += kColumns) {
      mask.factors(step, row, group + i / kColumns, factors);
#pragma unroll
      for (int k = 0; k < kColumns; ++k) result.values[i + k] = factors[k];
    }
  }
  return result;
}

}  // namespace tessera::ops::cuda
