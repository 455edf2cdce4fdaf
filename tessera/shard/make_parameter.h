// Makes one rank's sharded parameter.
#pragma once
#include "tessera/shard/parameter.h"

namespace tessera::shard {

// Returns the parameter for the rank at `place`, with its layouts and zeroed buffers. Throws the errors of layouts_of,
// and Error for: a compute layout without one part for each compute rank; a local part that is not a dense matrix; a
// layout that lacks an element.
ShardedParameter make_parameter(ParameterSpec spec, const ParameterTypes& types, const Cuts& cuts, const Place& place);

}  // namespace tessera::shard
