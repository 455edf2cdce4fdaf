// A build without CUDA has no CUDA kernels.
#include "tessera/quant/cuda_table.h"

namespace tessera::quant {

const CudaTable* cuda_table() {
  return nullptr;
}

}  // namespace tessera::quant
