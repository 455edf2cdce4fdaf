// The CUDA kernels of this layer, as pointers that are found where the program runs: a build without CUDA has none.
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/device.h"
#include "tessera/quant/device_kernels.h"

namespace tessera::quant {

// All of them enqueue on a stream of the current device, make_kernels' on that of its device.
struct CudaTable {
  std::unique_ptr<Kernels> (*make_kernels)(base::Device device, base::CudaStream stream) = nullptr;
  // As cast of elementwise.h.
  void (*cast)(const void* source, DType from, void* target, DType to, std::int64_t count,
               base::CudaStream stream) = nullptr;
  // sum[i] += term[i], both of an accumulator type.
  void (*add)(void* sum, DType type, const void* term, std::int64_t count, base::CudaStream stream) = nullptr;
};

// Null in a build without CUDA.
const CudaTable* cuda_table();
// Errors: a build without CUDA; `what` begins the message.
const CudaTable& require_cuda(std::string_view what);

}  // namespace tessera::quant
