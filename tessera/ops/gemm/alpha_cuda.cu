#include "tessera/base/cuda_check.h"
#include "tessera/ops/gemm/gemm_device.h"

namespace tessera::ops::cuda {
namespace {

__device__ float number(const float* address) {
  return address == nullptr ? 1.0F : *address;
}

__global__ void make_alpha(const __grid_constant__ AlphaTask task) {
  task.alpha[0] = product_alpha(task.left, number(task.left_whole), task.right, number(task.right_whole));
  task.alpha[1] = 0;
}

}  // namespace

void write_alpha(const AlphaTask& task, base::CudaStream stream) {
  make_alpha<<<1, 1, 0, stream>>>(task);
  TESSERA_CUDA_CHECK(cudaGetLastError());
}

}  // namespace tessera::ops::cuda
