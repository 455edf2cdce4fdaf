// The products of experts in fp32 and fp64, without tensor cores. The rows of each expert are a group with its own
// weight. The kernels read the sizes of the groups from device memory.
#include "tessera/ops/experts/experts_kernels.h"
#include "tessera/ops/experts/ordered_product.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kTile = 64, kThreads = kTile * kTile / 16;

struct Group {
  std::int64_t expert = -1, begin = 0, end = 0, first = 0;  // first: first row of this block's tile
};

// Returns the group and the row tile of thread block `index`. The tiles of all groups are numbered in order.
// Group::expert is -1 for indices after the last tile.
__device__ Group group_of(const std::int32_t* ends, std::int64_t local, std::int64_t index) {
  Group group;
  for (std::int64_t expert = 0; expert < local; ++expert) {
    group.begin = group.end;
    group.end = ends[expert];
    const std::int64_t tiles = (group.end - group.begin + kTile - 1) / kTile;
    if (index < tiles) {
      group.expert = expert;
      group.first = index * kTile;
      return group;
    }
    index -= tiles;
  }
  return group;
}

// Computes y = x w^T for fprop, or dx = dy w for dgrad.
template <bool kIsFprop, typename A>
__global__ void __launch_bounds__(kThreads) rows_times_weight(const PlainProductArguments a) {
  const Group group = group_of(a.ends, a.local, blockIdx.y);
  if (group.expert < 0) return;
  const std::int64_t inner = kIsFprop ? a.in : a.out, cols = kIsFprop ? a.out : a.in;
  const A* weight = static_cast<const A*>(a.other) + group.expert * a.out * a.in;
  const StridedMatrix<A> left{static_cast<const A*>(a.rows) + group.begin * inner, inner, 1};
  const StridedMatrix<A> right = kIsFprop ? StridedMatrix<A>{weight, 1, a.in} : StridedMatrix<A>{weight, a.in, 1};
  A* result = static_cast<A*>(a.result) + group.begin * cols;
  ordered_product<kTile, kTile, A>(
      left, right, group.end - group.begin, cols, inner, group.first, std::int64_t{blockIdx.x} * kTile,
      [&](std::int64_t row, std::int64_t col, A value) { result[row * cols + col] = value; });
}

// Computes dw = dy^T x for the rows of each expert.
template <typename A>
__global__ void __launch_bounds__(kThreads) weight_gradient(const PlainProductArguments a) {
  const std::int64_t expert = blockIdx.z, begin = expert == 0 ? 0 : a.ends[expert - 1];
  const StridedMatrix<A> left{static_cast<const A*>(a.rows) + begin * a.out, 1, a.out};
  const StridedMatrix<A> right{static_cast<const A*>(a.other) + begin * a.in, a.in, 1};
  A* result = static_cast<A*>(a.result) + expert * a.out * a.in;
  ordered_product<kTile, kTile, A>(left, right, a.out, a.in, a.ends[expert] - begin, std::int64_t{blockIdx.y} * kTile,
                                   std::int64_t{blockIdx.x} * kTile, [&](std::int64_t row, std::int64_t col, A value) {
                                     result[row * a.in + col] = value;
                                   });
}

}  // namespace

void plain_product(const PlainProductArguments& a, base::CudaStream stream) {
  const bool is_fprop = a.product == GroupedProduct::fprop, is_wgrad = a.product == GroupedProduct::wgrad;
  const std::int64_t cols = is_fprop ? a.out : a.in;
  if (a.local == 0 || cols == 0 || (is_wgrad ? a.out : a.room) == 0) return;
  dispatch_accumulator(a.type, [&](auto element) {
    using A = decltype(element);
    if (is_wgrad) {
      const dim3 grid(blocks_for(cols, kTile), blocks_for(a.out, kTile), static_cast<unsigned>(a.local));
      weight_gradient<A><<<grid, kThreads, 0, stream>>>(a);
      return;
    }
    const dim3 grid(blocks_for(cols, kTile), blocks_for(a.room, kTile) + static_cast<unsigned>(a.local));
    if (is_fprop)
      rows_times_weight<true, A><<<grid, kThreads, 0, stream>>>(a);
    else
      rows_times_weight<false, A><<<grid, kThreads, 0, stream>>>(a);
  });
  check_launch("products of experts");
}

}  // namespace tessera::ops::cuda
