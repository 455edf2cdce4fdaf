// Sums of squares for the norm of a gradient.
#pragma once
#include <cstdint>

#include "tessera/base/cuda_stream.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

// Writes the sum of the squares of row r to sums[r], in fp64. The order of the additions depends only on `cols`. If
// `states` is not null, states[r] is 0 only if all elements of row r are zeros. Such rows are not read.
void row_square_sums(const void* values, quant::DType type, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                     double* sums, const std::uint8_t* states = nullptr);
namespace cuda {
// The pointers point to device memory.
void row_square_sums(const void* values, quant::DType type, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                     double* sums, base::CudaStream stream, const std::uint8_t* states);
}  // namespace cuda

}  // namespace tessera::ops
