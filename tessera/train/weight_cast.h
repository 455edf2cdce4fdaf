// The planes of weights from their masters: what follows an update of the masters, and a load.
#pragma once
#include <span>

#include "tessera/runtime/runtime.h"

namespace tessera::train {

// Whether a parameter's only plane is its master rounded: then an update may write it in the same pass over memory,
// with the same bits.
bool is_rounded_master(const shard::ShardedParameter& parameter);

// Enqueues on compute's lane: this rank's state part of every plane of these parameters, from the masters. Nothing
// where a weight is its own master. Its publish follows. Errors: planes of no format that is known.
void cast_planes(runtime::Runtime& runtime, std::span<const schedule::ParameterId> ids);

}  // namespace tessera::train
