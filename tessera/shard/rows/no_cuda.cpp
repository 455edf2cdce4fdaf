// Replaces the CUDA kernels in a build without CUDA.
#include "tessera/base/error.h"
#include "tessera/shard/rows/row_kernels.h"

namespace tessera::shard::detail {

std::unique_ptr<RowKernels> make_cuda_row_kernels(base::Device device, base::CudaStream) {
  throw Error("{}: this program was built without CUDA", name_of(device));
}

}  // namespace tessera::shard::detail
