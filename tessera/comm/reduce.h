// The arithmetic of all_reduce and reduce_scatter, which is the same for every backend.
#pragma once
#include <cstdint>
#include <span>

#include "tessera/comm/communicator.h"
#include "tessera/quant/device_kernels.h"
#include "tessera/quant/dtype.h"

namespace tessera::comm {

// Throws Error if the type does not support the reduction. For example, u8 does not support sums, because they would
// overflow.
void check_reducible(quant::DType type, ReduceOp op, const char* where);

// Computes out[i] = op over the parts in their order, in `type`. Sums use the accumulator type of `type`: bf16 is
// summed in fp32 and rounded once. Sums of integers wrap. `out` may be one of the parts. Otherwise buffers must not
// overlap. Expects at least one part.
void reduce(const quant::Kernels& kernels, void* out, std::span<const void* const> parts, quant::DType type,
            ReduceOp op, std::int64_t count);
// Does the same reduction for buffers in host memory.
void reduce(void* out, std::span<const void* const> parts, quant::DType type, ReduceOp op, std::int64_t count);

}  // namespace tessera::comm
