// Groups of ranks as dense weights have them, by names of axes that no code knows.
#pragma once
#include "tessera/shard/parallel.h"

namespace tessera::shard {

inline Domain dense_domain() {
  return {.compute = {"users"}, .storage = {"keepers"}, .copies = {}, .replicas = {"replicas"}};
}

inline mesh::Mesh dense_mesh(int compute, int parts, int replicas) {
  return mesh::Mesh({{"users", compute}, {"keepers", parts}, {"replicas", replicas}});
}

inline Parallel dense_parallel(comm::World& world, int compute, int parts, int replicas, bool with_casts = false) {
  return make_parallel(world, dense_mesh(compute, parts, replicas), {dense_domain()}, with_casts);
}

}  // namespace tessera::shard
