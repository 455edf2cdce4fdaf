// The elementwise kernels of communication on the host: pack, cast, and sum in a fixed order. A result does not depend
// on the position of the element, on alignment, or on how callers divide the range (docs/numerics.md). All pointers are
// host memory, and all sizes are in elements.
#pragma once
#include <cstdint>
#include <span>

#include "tessera/quant/bfloat16.h"
#include "tessera/quant/dtype.h"

namespace tessera::quant {

// Copies a matrix of rows x cols elements of `element_bytes` bytes each. Strides are in elements.
void copy_matrix(const void* source, std::int64_t source_stride, void* target, std::int64_t target_stride,
                 std::int64_t rows, std::int64_t cols, std::size_t element_bytes);

// Sets target[i] to source[i], rounded to nearest even. `from` and `to` are any two floating types. source and target
// may be the same memory if the types are equal.
void cast(const void* source, DType from, void* target, DType to, std::int64_t count);

// Sets sum[i] to ((start + parts[0][i]) + parts[1][i]) + ..., computed in `accumulator` (fp32 or fp64). If `accumulate`
// is true, start is the old sum[i]; otherwise the sum begins with parts[0][i]. The parts have the element type `type`.
// `sum` may be one of the parts if `type` is `accumulator`.
void ordered_sum(void* sum, DType accumulator, bool accumulate, std::span<const void* const> parts, DType type,
                 std::int64_t count);

// Sums bf16 parts in fp32, in order, and rounds the result once. `out` may be one of the parts.
void ordered_sum_bfloat16(bfloat16* out, std::span<const void* const> parts, std::int64_t count);

// Sets out[i] to the maximum of parts[0][i], parts[1][i], ... if `maximum` is true, otherwise to their minimum. A NaN
// in any part gives NaN. `out` may be one of the parts.
void ordered_extreme(void* out, std::span<const void* const> parts, DType type, std::int64_t count, bool maximum);

}  // namespace tessera::quant
