// Moves a stored weight into the caller's memory, for an optimizer or a framework that keeps all weights in one flat
// buffer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "tessera/base/device.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

// A part of a flat buffer. The part begins at a multiple of base::kAlignment (256 bytes).
struct FlatMemory {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  base::Device device = {};
};

// Returns the bytes that replace_storage needs for a parameter on this rank, for any format. The planes follow one
// another, and the size of each plane is rounded up to a multiple of base::kAlignment. Returns 0 if this rank stores no
// part of the parameter.
std::size_t storage_bytes(const ShardedParameter& parameter);

// Moves the planes of a parameter, with their contents, to the beginning of `memory`. From then on gathers and casts
// use `memory`, and the old memory is released. The caller keeps `memory` as long as the parameter lives.
// ShardedParameter::tensor_scale (the number of a whole fp8 or nvfp4 matrix), the master and the gradient do not move.
//
// Call it outside a step, on the thread of the parameter's runtime, when no pending work reads or writes the weight
// (Runtime::wait_until_idle and a synchronised compute lane). Call it before a step is recorded as a graph, because
// graphs keep addresses. Local: ranks may call it independently. The bytes have been copied when it returns.
//
// Throws Error and changes nothing if the memory is too short, not aligned, on another device than the parameter, or
// overlaps the current memory of the planes. Only tests call this function.
void replace_storage(ShardedParameter& parameter, const FlatMemory& memory);

}  // namespace tessera::shard
