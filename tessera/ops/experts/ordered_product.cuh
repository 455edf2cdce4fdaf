// A matrix product whose terms are added in order: c[m, n] = sum over k of a(m, k) b(k, n). The sum starts from +0, and
// k is ascending. Products and sums are rounded separately, without fused multiply-add. The bits of an element depend
// only on its terms: neither on the tile, nor on other elements.
#pragma once
#include "tessera/ops/packs.cuh"

namespace tessera::ops::cuda {

// A matrix in memory: element (i, j) is data[i * row + j * col].
template <typename T>
struct StridedMatrix {
  const T* data;
  std::int64_t row, col;
};

// Computes one tile of kRows x kCols elements, which starts at (first_row, first_col). Calls store(row, col, value) for
// each element of the tile that is inside the result matrix of rows x cols elements. The block has kRows * kCols / 16
// threads, and each thread computes 4 x 4 elements. All threads of the block must call this function.
template <int kRows, int kCols, typename A, typename Left, typename Right, typename Store>
__device__ __forceinline__ void ordered_product(const StridedMatrix<Left>& left, const StridedMatrix<Right>& right,
                                                std::int64_t rows, std::int64_t cols, std::int64_t inner,
                                                std::int64_t first_row, std::int64_t first_col, Store store) {
  constexpr int kInner = 16, kThreads = kRows * kCols / 16;
  constexpr int kLeft = (kRows * kInner + kThreads - 1) / kThreads, kRight = (kCols * kInner + kThreads - 1) / kThreads;
  __shared__ A lefts[kInner][kRows + 4], rights[kInner][kCols + 4];
  const int thread = threadIdx.x, row = thread / (kCols / 4) * 4, col = thread % (kCols / 4) * 4;
  // Adjacent threads read adjacent elements along the dimension with stride 1.
  const bool left_by_rows = left.row == 1, right_by_rows = right.row == 1;
  A next_left[kLeft], next_right[kRight], sums[4][4] = {};
  const auto fetch = [&](std::int64_t begin) {
#pragma unroll
    for (int i = 0; i < kLeft; ++i) {
      const int at = thread + i * kThreads, m = left_by_rows ? at % kRows : at / kInner,
                k = left_by_rows ? at / kRows : at % kInner;
      const bool exists = at < kRows * kInner && first_row + m < rows && begin + k < inner;
      next_left[i] = exists ? load(left.data[(first_row + m) * left.row + (begin + k) * left.col]) : A{0};
    }
#pragma unroll
    for (int i = 0; i < kRight; ++i) {
      const int at = thread + i * kThreads, n = right_by_rows ? at / kInner : at % kCols,
                k = right_by_rows ? at % kInner : at / kCols;
      const bool exists = at < kCols * kInner && first_col + n < cols && begin + k < inner;
      next_right[i] = exists ? load(right.data[(begin + k) * right.row + (first_col + n) * right.col]) : A{0};
    }
  };
  const auto keep = [&] {
#pragma unroll
    for (int i = 0; i < kLeft; ++i) {
      const int at = thread + i * kThreads;
      if (at < kRows * kInner)
        lefts[left_by_rows ? at / kRows : at % kInner][left_by_rows ? at % kRows : at / kInner] = next_left[i];
    }
#pragma unroll
    for (int i = 0; i < kRight; ++i) {
      const int at = thread + i * kThreads;
      if (at < kCols * kInner)
        rights[right_by_rows ? at % kInner : at / kCols][right_by_rows ? at / kInner : at % kCols] = next_right[i];
    }
  };
  if (inner > 0) fetch(0);
  for (std::int64_t begin = 0; begin < inner; begin += kInner) {
    __syncthreads();
    keep();
    __syncthreads();
    if (begin + kInner < inner) fetch(begin + kInner);
    const int count = static_cast<int>(inner - begin < kInner ? inner - begin : kInner);
    const auto add = [&](int k) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] += lefts[k][row + i] * rights[k][col + j];
    };
    if (count == kInner) {
#pragma unroll
      for (int k = 0; k < kInner; ++k) add(k);
    } else {
      for (int k = 0; k < count; ++k) add(k);
    }
  }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j)
      if (first_row + row + i < rows && first_col + col + j < cols)
        store(first_row + row + i, first_col + col + j, sums[i][j]);
}

}  // namespace tessera::ops::cuda
