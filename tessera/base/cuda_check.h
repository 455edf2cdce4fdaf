// Errors of the CUDA runtime as Error. For files that are compiled with CUDA only.
#pragma once
#include <cuda_runtime_api.h>

#include "tessera/base/error.h"

namespace tessera::base {

inline void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error("{}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

}  // namespace tessera::base

#define TESSERA_CUDA_CHECK(call) ::tessera::base::check_cuda((call), #call)
