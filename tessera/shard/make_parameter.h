// Makes one rank's sharded parameter.
#pragma once
#include "tessera/shard/parameter.h"

namespace tessera::shard {

// Builds layouts and buffers (zero) for the rank at `place`. Errors: a compute layout whose size is not the number of
// compute ranks, whose local parts are no dense matrices, or that leaves an element out; a state split over replicas
// where places of the mesh are dead.
ShardedParameter make_parameter(ParameterSpec spec, const ParameterTypes& types, const Cuts& cuts, const Place& place);

}  // namespace tessera::shard
