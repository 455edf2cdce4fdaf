// Raw-pointer kernels of communication: pack, cast, sum in order. Elementwise results never depend on an element's
// position, on alignment or on how a range is cut (docs/numerics.md). All pointers are host memory, sizes in elements.
#pragma once
#include <cstdint>
#include <span>

#include "tessera/quant/bfloat16.h"
#include "tessera/quant/dtype.h"

namespace tessera::quant {

// rows x cols elements of `element_bytes` bytes, strides in elements.
void copy_matrix(const void* source, std::int64_t source_stride, void* target, std::int64_t target_stride,
                 std::int64_t rows, std::int64_t cols, std::size_t element_bytes);

// target[i] = source[i] rounded to nearest even; any two floating types. source and target may be equal for equal
// types.
void cast(const void* source, DType from, void* target, DType to, std::int64_t count);

// sum[i] = ((start + parts[0][i]) + parts[1][i]) + ... in `accumulator` (fp32 or fp64), where start is sum[i] when
// `accumulate`, else parts[0][i] begins the sum. Parts are of `type`. sum may be one of the parts when the types are
// equal.
void ordered_sum(void* sum, DType accumulator, bool accumulate, std::span<const void* const> parts, DType type,
                 std::int64_t count);

// The same in fp32 for parts of bf16, rounded once. out may be one of the parts.
void ordered_sum_bfloat16(bfloat16* out, std::span<const void* const> parts, std::int64_t count);

// Maximum or minimum of parts over ranks: out[i] = op(parts[r][i]); NaN in any part gives NaN. out may be one of the
// parts.
void ordered_extreme(void* out, std::span<const void* const> parts, DType type, std::int64_t count, bool maximum);

}  // namespace tessera::quant
