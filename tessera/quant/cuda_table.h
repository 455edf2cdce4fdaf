// The CUDA kernels of this layer, as a table of pointers. A build without CUDA has no table.
#pragma once
#include <cstdint>
#include <memory>
#include <string_view>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/device.h"
#include "tessera/quant/device_kernels.h"

namespace tessera::quant {

// The functions enqueue on a stream of the current device; the kernels of make_kernels enqueue on a stream of its
// `device`.
struct CudaTable {
  std::unique_ptr<Kernels> (*make_kernels)(base::Device device, base::CudaStream stream) = nullptr;
  // Casts as quant::cast (elementwise.h) does.
  void (*cast)(const void* source, DType from, void* target, DType to, std::int64_t count,
               base::CudaStream stream) = nullptr;
  // Adds term[i] to sum[i]. Both have `type`, an accumulator type.
  void (*add)(void* sum, DType type, const void* term, std::int64_t count, base::CudaStream stream) = nullptr;
};

// Returns null in a build without CUDA.
const CudaTable* cuda_table();
// Returns the table. Errors: a build without CUDA; the message begins with `what`.
const CudaTable& require_cuda(std::string_view what);

}  // namespace tessera::quant
