// Sums of parts on CUDA. A thread adds the packs of its columns.
#pragma once
#include "tessera/ops/norm/sum_of_parts.h"
#include "tessera/ops/packs.cuh"

namespace tessera::ops::cuda {

// Adds the packs of parts 1, 2, ... to those of part 0. `sum` holds the loaded packs of part 0, and `next` those of
// part 1. The packs start at the columns first, first + step, ... of the row that starts at element `row`.
template <bool kWhole, int kPacks, typename T, int N>
__device__ __forceinline__ void sum_parts(const SumOfParts& parts, std::int64_t row, std::int64_t first, int step,
                                          std::int64_t hidden, Pack<T, N> (&sum)[kPacks], Pack<T, N> (&next)[kPacks]) {
  Accumulator<T> values[kPacks][N];
#pragma unroll
  for (int i = 0; i < kPacks; ++i)
#pragma unroll
    for (int k = 0; k < N; ++k) values[i][k] = sum[i][k];
  for (int part = 1;;) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i)
#pragma unroll
      for (int k = 0; k < N; ++k) values[i][k] += next[i][k];
    if (++part >= parts.count) break;
    const T* data = static_cast<const T*>(parts.parts[part]) + row;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) next[i] = load_pack<kWhole, N>(data, first + i * step, hidden);
  }
#pragma unroll
  for (int i = 0; i < kPacks; ++i) sum[i] = rounded<T>(values[i]);
}

// Adds the parts of a matrix, one row per block.
template <bool kWhole, typename T>
__global__ void sum_rows(const __grid_constant__ SumOfParts parts, std::int64_t hidden, T* sum) {
  constexpr int N = kPack<T>;
  const std::int64_t row = blockIdx.x * hidden;
  for (std::int64_t i = threadIdx.x * N; i < hidden; i += blockDim.x * N) {
    Pack<T, N> first[1]{load_pack<kWhole, N>(static_cast<const T*>(parts.parts[0]) + row, i, hidden)};
    Pack<T, N> next[1]{load_pack<kWhole, N>(static_cast<const T*>(parts.parts[1]) + row, i, hidden)};
    sum_parts<kWhole>(parts, row, i, 0, hidden, first, next);
    store_pack<kWhole>(sum + row, i, hidden, first[0]);
  }
}

template <typename T>
bool parts_whole(const SumOfParts& sum, std::int64_t cols) {
  return std::all_of(sum.parts, sum.parts + sum.count, [cols](const void* part) { return rows_whole<T>(cols, part); });
}

}  // namespace tessera::ops::cuda
