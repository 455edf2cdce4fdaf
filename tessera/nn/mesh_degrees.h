// The degrees of parallelism of a run, and the layout of ranks that follows from them. Training, planning, benchmarks
// and `tessera inspect layout` all use rank_layout. The layers below receive axes by name.
#pragma once
#include <cstdint>
#include <optional>

#include "tessera/shard/rank_layout.h"

namespace tessera::nn {

// Experts are sharded over the same places as the dense weights, along the axes of a second grid: etp, ep, egtp, edp,
// dp. A replica has tp * gtp places in both grids.
struct ExpertDegrees {
  int etp = 1;   // ranks that compute with different parts of each expert's matrices
  int ep = 1;    // ranks that own different experts
  int egtp = 1;  // ranks that store different shards of the same part
};

struct MeshDegrees {
  int tp = 1;   // ranks that compute with different parts of each matrix
  int gtp = 1;  // ranks that store different shards of the same part and read different samples
  int dp = 1;   // replicas of the model
  std::optional<ExpertDegrees> experts = std::nullopt;  // of a model with experts

  std::int64_t places() const { return static_cast<std::int64_t>(tp) * gtp * dp; }
  // Ranks of a replica that store the same part of an expert.
  int edp() const { return experts ? tp * gtp / (experts->etp * experts->ep * experts->egtp) : 1; }
};

// The number of the domain of experts in RankLayout::domains. Domain 0 is that of the dense weights.
inline constexpr int kExpertDomain = 1;

// Throws InputError for expert degrees that do not fit the replica, see rank_layout.
void check_expert_degrees(const MeshDegrees& degrees);
// Returns the mesh and the domains. The dense grid has the axes tp, gtp and dp. Throws InputError for a degree below 1,
// for too many ranks, and for expert degrees that do not fit the replica: etp * ep * egtp must divide tp * gtp, etp
// must divide tp, and tp must divide etp * ep. Pure; every rank calls it with the same degrees.
shard::RankLayout rank_layout(const MeshDegrees& degrees);

}  // namespace tessera::nn
