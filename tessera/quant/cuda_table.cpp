#include "tessera/quant/cuda_table.h"

#include "tessera/base/error.h"

namespace tessera::quant {

const CudaTable& require_cuda(std::string_view what) {
  const CudaTable* table = cuda_table();
  if (table == nullptr) throw Error("{}: this program was built without CUDA", what);
  return *table;
}

std::unique_ptr<Kernels> make_cuda_kernels(base::Device device, base::CudaStream stream) {
  return require_cuda(base::name_of(device)).make_kernels(device, stream);
}

}  // namespace tessera::quant
