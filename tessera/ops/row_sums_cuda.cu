#include "tessera/base/cuda_check.h"
#include "tessera/ops/row_sums.h"

namespace tessera::ops::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    sum_rows_kernel(const double* values, const std::int64_t* begins, const std::int64_t* positions, std::int64_t rows,
                    double* sums) {
  __shared__ double lanes[kThreads];
  const std::int64_t first = blockIdx.x * kRowsTogether;
  double sum = 0;
  for (std::int64_t at = threadIdx.x; at < kRowsTogether && first + at < rows; at += kThreads) {
    double row = 0;
    for (std::int64_t i = begins[first + at]; i < begins[first + at + 1]; ++i) row += values[positions[i]];
    sum += row;
  }
  lanes[threadIdx.x] = sum;
  __syncthreads();
  for (int width = kThreads / 2; width > 0; width /= 2) {
    if (threadIdx.x < width) lanes[threadIdx.x] += lanes[threadIdx.x + width];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = lanes[0];
}

}  // namespace

void sum_rows(const double* values, const std::int64_t* begins, const std::int64_t* positions, std::int64_t rows,
              double* sums, base::CudaStream stream) {
  if (rows == 0) return;
  const auto blocks = static_cast<unsigned>((rows + kRowsTogether - 1) / kRowsTogether);
  sum_rows_kernel<<<blocks, kThreads, 0, stream>>>(values, begins, positions, rows, sums);
  TESSERA_CUDA_CHECK(cudaGetLastError());
}

}  // namespace tessera::ops::cuda
