#include "tessera/base/error.h"
#include "tessera/ops/gemm/gemm_device.h"

namespace tessera::ops::cuda {

void multiply(const Product&, void*, base::CudaStream, int) {
  throw Error("gemm: this build has no CUDA");
}

void write_alpha(const AlphaTask&, base::CudaStream) {
  throw Error("gemm: this build has no CUDA");
}

void multiply(const ScaledProduct&, void*, base::CudaStream, int) {
  throw Error("gemm: this build has no CUDA");
}

}  // namespace tessera::ops::cuda
