// Errors of the CUDA runtime as Error. For files that are compiled with CUDA only; without the formatting of error.h,
// which nvcc does not take.
#pragma once
#include <cuda_runtime_api.h>

#include <string>

namespace tessera::base {

// Throws Error: "what: text (name)".
[[noreturn]] void fail_cuda(cudaError_t status, const char* what);
// Throws Error with this message.
[[noreturn]] void fail(const std::string& message);

inline void check_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) fail_cuda(status, what);
}

}  // namespace tessera::base

#define TESSERA_CUDA_CHECK(call) ::tessera::base::check_cuda((call), #call)
