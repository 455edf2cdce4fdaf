#include "tessera/nn/mesh_degrees.h"

namespace tessera::nn {

shard::RankLayout rank_layout(const MeshDegrees& degrees) {
  return {.mesh = mesh::Mesh({{"tp", degrees.tp}, {"gtp", degrees.gtp}, {"dp", degrees.dp}}),
          .domains = {{.compute = {"tp"}, .storage = {"gtp"}, .duplicates = {}, .replicas = {"dp"}}}};
}

}  // namespace tessera::nn
