// Makes one rank's sharded parameter.
#pragma once
#include "tessera/shard/parameter.h"

namespace tessera::shard {

// Returns the parameter for the rank at `place`, with its layouts and zeroed buffers. Throws Error if the compute
// layout does not have one part for each compute rank, if a local part is not a dense matrix, or if the layout lacks an
// element. Throws the errors of layouts_of.
ShardedParameter make_parameter(ParameterSpec spec, const ParameterTypes& types, const Cuts& cuts, const Place& place);

}  // namespace tessera::shard
