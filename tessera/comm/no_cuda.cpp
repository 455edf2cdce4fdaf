// What stands in for CUDA and NCCL where the library is built without them.
#include "tessera/base/error.h"
#include "tessera/comm/device_kernels.h"
#include "tessera/comm/nccl/world.h"

namespace tessera::comm {

std::unique_ptr<Kernels> make_cuda_kernels(base::Device device, base::CudaStream) {
  throw Error("{}: this program was built without CUDA", base::name_of(device));
}

bool nccl_available() {
  return false;
}

std::unique_ptr<World> make_nccl_world(const NcclOptions&) {
  throw InputError("backend nccl: this program was built without CUDA");
}

}  // namespace tessera::comm
