// How the parameters of a run are sharded over its ranks. nn/mesh_degrees.h makes a RankLayout from the flags of a run.
#pragma once
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/shard/domain.h"

namespace tessera::shard {

struct RankLayout {
  mesh::Mesh mesh;
  std::vector<Domain> domains;  // at least one; the first is the domain of activations and samples
};

}  // namespace tessera::shard
