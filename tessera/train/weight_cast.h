// Writes the planes of weights from their masters, after an update of the masters.
#pragma once
#include <span>

#include "tessera/runtime/runtime.h"

namespace tessera::train {

// Returns whether the only plane of a parameter is its master, rounded. An update may then write the plane in its own
// pass over memory, with the same bits.
bool is_rounded_master(const shard::ShardedParameter& parameter);

// Enqueues the casts on the lane of compute. They write this rank's state part of every plane of these parameters; a
// weight that is its own master needs no cast. The caller publishes the weights afterwards. Errors: planes whose format
// is unknown.
void cast_planes(runtime::Runtime& runtime, std::span<const schedule::ParameterId> ids);

}  // namespace tessera::train
