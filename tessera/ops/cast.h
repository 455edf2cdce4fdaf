// Rounding between floating types, and adding, on raw pointers: of the host, or in namespace cuda of the device. Each
// element is rounded once to nearest even; its result does not depend on its position and is the same on both (of a
// NaN: a NaN). No tensor library.
#pragma once
#include <cstdint>

#include "tessera/base/cuda_stream.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

// to[i] = round(from[i]); any two floating types; the ranges do not overlap.
void cast(const void* from, quant::DType from_type, void* to, quant::DType to_type, std::int64_t count);
// sum[i] += term[i], both of `type` (fp32 or fp64).
void add(void* sum, const void* term, quant::DType type, std::int64_t count);

namespace cuda {
void cast(const void* from, quant::DType from_type, void* to, quant::DType to_type, std::int64_t count,
          base::CudaStream stream);
void add(void* sum, const void* term, quant::DType type, std::int64_t count, base::CudaStream stream);
}  // namespace cuda

}  // namespace tessera::ops
