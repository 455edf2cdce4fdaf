// Sums of the columns of a matrix of parts, in an order that depends only on the number of parts.
#pragma once
#include "tessera/ops/packs.cuh"

namespace tessera::ops::cuda {

inline constexpr int kSumColumns = 32, kSumGroups = 32;  // dimensions of a block that adds parts

// Adds the parts of each column to `sum`. Each of kSumGroups threads adds every kSumGroups-th part in order; then the
// groups are added in order.
template <typename A>
__global__ void __launch_bounds__(kSumColumns* kSumGroups)
    add_parts(const A* parts, int count, std::int64_t columns, A* __restrict__ sum, bool accumulate) {
  __shared__ A groups[kSumGroups][kSumColumns];
  const std::int64_t column = std::int64_t{blockIdx.x} * kSumColumns + threadIdx.x;
  A total = 0;
  cudaGridDependencySynchronize();
  if (column < columns) {
#pragma unroll 8
    for (int part = threadIdx.y; part < count; part += kSumGroups) total += parts[part * columns + column];
  }
  groups[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  for (int group = 1; group < kSumGroups; ++group) total += groups[group][threadIdx.x];
  sum[column] = accumulate ? sum[column] + total : total;
}

// parts: [count, columns]. sum: [columns]; the sums overwrite it, or are added to it if `accumulate` is true.
template <typename A>
void sum_columns(const A* parts, std::int64_t count, std::int64_t columns, A* sum, bool accumulate,
                 base::CudaStream stream) {
  launch_early(add_parts<A>, dim3(blocks_for(columns, kSumColumns)), dim3(kSumColumns, kSumGroups), stream, parts,
               static_cast<int>(count), columns, sum, accumulate);
}

}  // namespace tessera::ops::cuda
