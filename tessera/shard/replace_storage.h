// Moves a stored weight into memory of the caller. Intended for an optimizer or a framework that keeps all weights in
// one flat buffer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "tessera/base/device.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

// A range of a flat buffer. The range begins at a multiple of base::kAlignment (256 bytes).
struct FlatMemory {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  base::Device device = {};
};

// Returns the bytes that replace_storage needs for a parameter on this rank. The planes follow one another, and the
// size of each plane is rounded up to a multiple of base::kAlignment. Returns 0 if this rank stores no part of the
// parameter.
std::size_t storage_bytes(const ShardedParameter& parameter);

// Moves the planes of a parameter, with their contents, to the beginning of `memory`. Later gathers and casts use
// `memory`. The old memory is released. The caller must keep `memory` as long as the parameter lives.
// ShardedParameter::tensor_scale (the number of a whole fp8 or nvfp4 matrix), the master and the gradient do not move.
//
// Call this function outside a step, on the thread of the parameter's runtime. Pending work must not read or write the
// weight, so first call Runtime::wait_until_idle and synchronize the compute lane. Call this function before a step is
// captured as a graph, because graphs keep addresses. Not collective: ranks may call it independently. The bytes have
// been copied when the function returns.
//
// Throws Error and changes nothing if the memory is too short, not aligned, on another device than the parameter, or
// overlaps the current memory of the planes.
void replace_storage(ShardedParameter& parameter, const FlatMemory& memory);

}  // namespace tessera::shard
