// The arithmetic of all_reduce and reduce_scatter, the same for every backend.
#pragma once
#include <cstdint>
#include <span>

#include "tessera/comm/communicator.h"
#include "tessera/quant/device_kernels.h"
#include "tessera/quant/dtype.h"

namespace tessera::comm {

// Errors: a type that has no such reduction (u8 has no sum: it would wrap).
void check_reducible(quant::DType type, ReduceOp op, const char* where);

// out[i] = op over parts in their order, in `type`. Sums run in the accumulator type of `type` (bf16 in fp32, rounded
// once); integers wrap. out may be one of the parts; otherwise nothing overlaps. At least one part.
void reduce(const quant::Kernels& kernels, void* out, std::span<const void* const> parts, quant::DType type,
            ReduceOp op, std::int64_t count);
// In host memory.
void reduce(void* out, std::span<const void* const> parts, quant::DType type, ReduceOp op, std::int64_t count);

}  // namespace tessera::comm
