// Moves a stored weight into memory of the caller: an optimizer or a framework that keeps all weights in one flat
// buffer.
#pragma once
#include <cstddef>
#include <cstdint>

#include "tessera/base/device.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

// A part of a flat buffer. It begins at a multiple of base::kAlignment (256 bytes).
struct FlatMemory {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  base::Device device = {};
};

// The bytes that replace_storage needs for a parameter on this rank, in every format: its planes one behind the other,
// each rounded up to a multiple of base::kAlignment. 0 where this rank stores nothing of it.
std::size_t storage_bytes(const ShardedParameter& parameter);

// Moves the planes of a parameter to the beginning of `memory` and keeps what they hold: from then on gathers and
// casts read and write there, and the old memory is given back. The caller keeps `memory` as long as the parameter
// lives. The number of a whole fp8 or nvfp4 matrix (ShardedParameter::tensor_scale), master and gradient stay where
// they are.
//
// It is called outside a step, by the thread of the parameter's runtime, while nothing is under way that reads or
// writes the weight (Runtime::settle and a synchronised compute lane), and before a step is recorded as a graph, since
// graphs keep addresses. Local: the ranks need not do it alike. It returns when the bytes are there.
//
// Errors, with which nothing has changed: memory that is too short, on another device than the parameter, not aligned,
// or that overlaps the planes' present place. Only tests call it.
void replace_storage(ShardedParameter& parameter, const FlatMemory& memory);

}  // namespace tessera::shard
