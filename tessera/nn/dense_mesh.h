// The mesh of dense weights, and the axes over which the weights are sharded.
#pragma once
#include "tessera/shard/parallel_groups.h"

namespace tessera::nn {

// tp: ranks that compute with different parts of each matrix. gtp: ranks that store different shards of the same part
// and read different samples. dp: replicas of the model.
mesh::Mesh dense_mesh(int tp, int gtp, int dp);
shard::Domain dense_domain();

// Returns shard::make_parallel_groups for this mesh and domain. Throws InputError if tp * gtp * dp is not the world
// size.
shard::ParallelGroups dense_parallel(comm::World& world, int tp, int gtp, int dp, bool with_casts = false);

}  // namespace tessera::nn
