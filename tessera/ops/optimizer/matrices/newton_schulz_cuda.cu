#include "tessera/ops/optimizer/matrices/newton_schulz.h"
#include "tessera/ops/optimizer/matrices/newton_schulz_kernels.h"
#include "tessera/ops/packs.cuh"

namespace tessera::ops::cuda {
namespace {

constexpr int kNormThreads = 256;
constexpr int kSide = 32, kLines = 8;  // a block moves a square of kSide x kSide elements, kLines rows at a time

// One block for each matrix. All threads load, and the first thread adds in order.
__global__ void __launch_bounds__(kNormThreads)
    norms_of(const double* __restrict__ row_sums, std::int64_t rows, double* __restrict__ norms) {
  __shared__ double sums[2][kNormThreads];
  const double* const own = row_sums + blockIdx.x * rows;
  const auto thread = static_cast<std::int64_t>(threadIdx.x);
  double total = 0;
  sums[0][threadIdx.x] = thread < rows ? own[thread] : 0;
  int turn = 0;
  for (std::int64_t first = 0; first < rows; first += kNormThreads, turn ^= 1) {
    const std::int64_t next = first + kNormThreads + thread;
    sums[turn ^ 1][threadIdx.x] = next < rows ? own[next] : 0;
    __syncthreads();
    if (threadIdx.x == 0) {
      const int count = static_cast<int>(min(std::int64_t{kNormThreads}, rows - first));
      for (int i = 0; i < count; ++i) total += sums[turn][i];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) norms[blockIdx.x] = sqrt(total);
}

// Moves a square of a matrix. blockIdx.z is the matrix. kTransposes: element (row, col) becomes (col, row). kDivides:
// divides by the norm of the matrix.
template <bool kTransposes, bool kDivides, typename T>
__global__ void __launch_bounds__(kSide* kLines)
    move_square(const T* __restrict__ from, std::int64_t rows, std::int64_t cols, std::int64_t from_stride,
                std::int64_t to_stride, const double* __restrict__ norms, T* __restrict__ to) {
  using A = Accumulator<T>;
  __shared__ T square[kSide][kSide + 1];
  const std::int64_t first_row = std::int64_t{blockIdx.y} * kSide, first_col = std::int64_t{blockIdx.x} * kSide;
  from += blockIdx.z * from_stride;
  to += blockIdx.z * to_stride;
  A divisor = 1;
  if constexpr (kDivides) {
    const A norm = static_cast<A>(norms[blockIdx.z]), least = static_cast<A>(kMinMatrixNorm);
    divisor = norm < least ? least : norm;  // a NaN stays a NaN
  }
#pragma unroll
  for (int line = 0; line < kSide; line += kLines) {
    const int row_of_square = line + static_cast<int>(threadIdx.y);
    const std::int64_t row = first_row + row_of_square, col = first_col + threadIdx.x;
    if (row >= rows || col >= cols) continue;
    T value = from[row * cols + col];
    if constexpr (kDivides) value = round_to<T>(load(value) / divisor);
    if constexpr (kTransposes)
      square[row_of_square][threadIdx.x] = value;
    else
      to[row * cols + col] = value;
  }
  if constexpr (kTransposes) {
    __syncthreads();
#pragma unroll
    for (int line = 0; line < kSide; line += kLines) {
      const int col_of_square = line + static_cast<int>(threadIdx.y);
      const std::int64_t col = first_col + col_of_square, row = first_row + threadIdx.x;
      if (row < rows && col < cols) to[col * rows + row] = square[threadIdx.x][col_of_square];
    }
  }
}

template <bool kTransposes, bool kDivides, typename T>
void move(const T* from, std::int64_t rows, std::int64_t cols, const IteratedMatrices& matrices,
          std::int64_t from_stride, std::int64_t to_stride, const double* norms, T* to, base::CudaStream stream) {
  // The numbers of squares and of matrices in a launch are limited.
  constexpr std::int64_t kMost = 65535;
  for (std::int64_t first = 0; first < matrices.count; first += kMost) {
    const dim3 grid(blocks_for(cols, kSide), blocks_for(rows, kSide),
                    static_cast<unsigned>(std::min(kMost, matrices.count - first)));
    move_square<kTransposes, kDivides>
        <<<grid, dim3(kSide, kLines), 0, stream>>>(from + first * from_stride, rows, cols, from_stride, to_stride,
                                                   norms == nullptr ? norms : norms + first, to + first * to_stride);
  }
}

}  // namespace

void matrix_norms(const IteratedMatrices& matrices, const double* row_sums, double* norms, base::CudaStream stream) {
  if (matrices.count == 0) return;
  norms_of<<<static_cast<unsigned>(matrices.count), kNormThreads, 0, stream>>>(row_sums, matrices.rows, norms);
  check_launch("matrix_norms");
}

void begin_iterations(const IteratedMatrices& matrices, const void* u, const double* norms, void* x,
                      base::CudaStream stream) {
  dispatch_floating(matrices.type, [&](auto element) {
    using T = decltype(element);
    dispatch_bool(matrices.rows > matrices.cols, [&](auto transposes) {
      move<decltype(transposes)::value, true>(static_cast<const T*>(u), matrices.rows, matrices.cols, matrices,
                                              matrices.stride, matrices.x_stride, norms, static_cast<T*>(x), stream);
    });
  });
  check_launch("begin_iterations");
}

void end_iterations(const IteratedMatrices& matrices, const void* x, void* to, base::CudaStream stream) {
  dispatch_floating(matrices.type, [&](auto element) {
    using T = decltype(element);
    const bool is_tall = matrices.rows > matrices.cols;
    dispatch_bool(is_tall, [&](auto transposes) {
      move<decltype(transposes)::value, false>(static_cast<const T*>(x), is_tall ? matrices.cols : matrices.rows,
                                               is_tall ? matrices.rows : matrices.cols, matrices, matrices.x_stride,
                                               matrices.stride, nullptr, static_cast<T*>(to), stream);
    });
  });
  check_launch("end_iterations");
}

}  // namespace tessera::ops::cuda
