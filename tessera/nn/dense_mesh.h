// The mesh of dense weights, and what they are cut over.
#pragma once
#include "tessera/shard/parallel_groups.h"

namespace tessera::nn {

// tp: ranks that share out each matrix while it is used. gtp: ranks that store such a part between them, and read
// different samples. dp: replicas of the model.
mesh::Mesh dense_mesh(int tp, int gtp, int dp);
shard::Domain dense_domain();

// shard::make_parallel_groups with them. Errors (InputError): tp * gtp * dp is not the world's size.
shard::ParallelGroups dense_parallel(comm::World& world, int tp, int gtp, int dp, bool with_casts = false);

}  // namespace tessera::nn
