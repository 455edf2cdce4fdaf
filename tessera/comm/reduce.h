// The arithmetic of all_reduce and reduce_scatter, the same for every backend.
#pragma once
#include <cstdint>
#include <span>

#include "tessera/base/dtype.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/device_kernels.h"

namespace tessera::comm {

// Errors: a type that has no such reduction (u8 has no sum: it would wrap).
void check_reducible(base::DType type, ReduceOp op, const char* where);

// out[i] = op over parts in their order, in `type`. Sums run in the accumulator type of `type` (bf16 in fp32, rounded
// once); integers wrap. out may be one of the parts; otherwise nothing overlaps. At least one part.
void reduce(const Kernels& kernels, void* out, std::span<const void* const> parts, base::DType type, ReduceOp op,
            std::int64_t count);
// In host memory.
void reduce(void* out, std::span<const void* const> parts, base::DType type, ReduceOp op, std::int64_t count);

}  // namespace tessera::comm
