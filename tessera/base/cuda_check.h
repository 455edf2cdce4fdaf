// Converts errors of the CUDA runtime to Error. Only for files that are compiled with CUDA. This header does not
// include error.h, because nvcc cannot compile the format strings in error.h.
#pragma once
#include <cuda_runtime_api.h>

#include <string>

namespace tessera::base {

// Throws Error("WHAT: TEXT (NAME)"), with CUDA's text and name of the status.
[[noreturn]] void fail_cuda(cudaError_t status, const char* what);
// Throws Error with this message.
[[noreturn]] void fail(const std::string& message);

inline void check_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) fail_cuda(status, what);
}

}  // namespace tessera::base

#define TESSERA_CUDA_CHECK(call) ::tessera::base::check_cuda((call), #call)
