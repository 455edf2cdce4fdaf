// Converts errors of the CUDA runtime to Error, and describes launches. Only for files that are compiled with CUDA.
// This header does not include error.h, because nvcc cannot compile the format strings in error.h.
#pragma once
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "tessera/base/ceil_div.h"

namespace tessera::base {

// Throws Error("WHAT: TEXT (NAME)"), with CUDA's text and name of the status.
[[noreturn]] void fail_cuda(cudaError_t status, const char* what);
// Throws Error with this message.
[[noreturn]] void fail(const std::string& message);

inline void check_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) fail_cuda(status, what);
}

// Returns the number of blocks of a launch that processes `items`, at least 1. Throws Error if the number exceeds the
// limit of a launch.
inline unsigned blocks_for(std::int64_t items, std::int64_t per_block) {
  const std::int64_t blocks = ceil_div(items, per_block);
  if (blocks > 0x7FFFFFFF) fail("expected at most 2147483647 blocks in one launch, got more");
  return blocks > 1 ? static_cast<unsigned>(blocks) : 1;
}

inline bool is_aligned(const void* pointer, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

}  // namespace tessera::base

#define TESSERA_CUDA_CHECK(call) ::tessera::base::check_cuda((call), #call)
