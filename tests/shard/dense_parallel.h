// Groups of ranks with the sharding of dense weights. The names of the axes differ from those of a run, because the
// tested code must not depend on them.
#pragma once
#include <vector>

#include "tessera/shard/parallel_groups.h"

namespace tessera::shard {

inline Domain dense_domain() {
  return {.compute = {"users"}, .storage = {"keepers"}, .duplicates = {}, .replicas = {"replicas"}};
}

// `dead` are the places without a rank.
inline mesh::Mesh dense_mesh(int compute, int parts, int replicas, const std::vector<int>& dead = {}) {
  const mesh::Grid grid{{"users", compute}, {"keepers", parts}, {"replicas", replicas}};
  return {{grid}, mesh::live_places(grid, dead)};
}

inline ParallelGroups dense_parallel(comm::World& world, int compute, int parts, int replicas, bool with_casts = false,
                                     const std::vector<int>& dead = {}) {
  return make_parallel_groups(world, {.mesh = dense_mesh(compute, parts, replicas, dead), .domains = {dense_domain()}},
                              with_casts);
}

}  // namespace tessera::shard
