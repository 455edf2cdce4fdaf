// What stands in for the CUDA kernels where the library is built without CUDA.
#include "tessera/base/error.h"
#include "tessera/quant/device_kernels.h"

namespace tessera::quant {

std::unique_ptr<Kernels> make_cuda_kernels(base::Device device, base::CudaStream) {
  throw Error("{}: this program was built without CUDA", base::name_of(device));
}

}  // namespace tessera::quant
