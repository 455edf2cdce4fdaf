#include "tessera/nn/dense_mesh.h"

#include "tessera/base/error.h"

namespace tessera::nn {

mesh::Mesh dense_mesh(int tp, int gtp, int dp) {
  return mesh::Mesh({{"tp", tp}, {"gtp", gtp}, {"dp", dp}});
}

shard::Domain dense_domain() {
  return {.compute = {"tp"}, .storage = {"gtp"}, .duplicates = {}, .replicas = {"dp"}};
}

shard::ParallelGroups dense_parallel(comm::World& world, int tp, int gtp, int dp, bool with_casts) {
  mesh::Mesh mesh = dense_mesh(tp, gtp, dp);
  if (mesh.world_size() != world.size())
    throw InputError("tp {} x gtp {} x dp {} = {} ranks, but the run has {}", tp, gtp, dp, mesh.world_size(),
                     world.size());
  return shard::make_parallel_groups(world, std::move(mesh), {dense_domain()}, with_casts);
}

}  // namespace tessera::nn
