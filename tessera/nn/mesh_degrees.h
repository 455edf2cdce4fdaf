// The degrees of parallelism of a run, and the layout of ranks that follows from them. Training, planning, benchmarks
// and `tessera inspect layout` all use this function. The layers below receive axes by name.
#pragma once
#include <cstdint>

#include "tessera/shard/rank_layout.h"

namespace tessera::nn {

struct MeshDegrees {
  int tp = 1;   // ranks that compute with different parts of each matrix
  int gtp = 1;  // ranks that store different shards of the same part and read different samples
  int dp = 1;   // replicas of the model
  std::int64_t places() const { return static_cast<std::int64_t>(tp) * gtp * dp; }

  bool operator==(const MeshDegrees&) const = default;
};

// Returns the mesh, with the axes tp, gtp and dp, and the domain of dense weights. Throws InputError for a degree below
// 1 and for too many ranks. Pure; every rank calls it with the same degrees.
shard::RankLayout rank_layout(const MeshDegrees& degrees);

}  // namespace tessera::nn
