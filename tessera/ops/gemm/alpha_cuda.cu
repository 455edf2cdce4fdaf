#include "tessera/base/cuda_check.h"
#include "tessera/ops/gemm/gemm_device.h"

namespace tessera::ops::cuda {
namespace {

__device__ float number(const float* address) {
  return address == nullptr ? 1.0F : *address;
}

__global__ void make_alpha(const __grid_constant__ AlphaTask task) {
  const float left = number(task.left_whole), right = number(task.right_whole);
  const float alpha = product_alpha(task.left, left, task.right, right);
  // A matrix with the amax 0 has only zeros and NaNs, so the factor 1 gives the same product. With the factor 0, a
  // library may skip the sums and lose the NaNs.
  task.alpha[0] = alpha == 0 && (left == 0 || right == 0) ? 1.0F : alpha;
  task.alpha[1] = 0;
}

}  // namespace

void write_alpha(const AlphaTask& task, base::CudaStream stream) {
  make_alpha<<<1, 1, 0, stream>>>(task);
  TESSERA_CUDA_CHECK(cudaGetLastError());
}

}  // namespace tessera::ops::cuda
