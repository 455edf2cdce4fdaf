// The degrees of parallelism of a run, and the layout of ranks that follows from them. Training, planning, benchmarks
// and `tessera inspect layout` all call rank_layout. Lower layers receive the names of the axes as arguments.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/shard/rank_layout.h"

namespace tessera::runtime {
class Program;
}

namespace tessera::nn {

// Experts are sharded over the same places as the dense weights, along the axes of a second grid: etp, ep, egtp, edp,
// dp. A replica has tp * gtp places in both grids.
struct ExpertDegrees {
  int etp = 1;   // number of ranks that compute with different parts of each expert's matrices
  int ep = 1;    // number of ranks that own different experts
  int egtp = 1;  // number of ranks that store different shards of the same part of an expert
};

struct MeshDegrees {
  int tp = 1;   // number of ranks that compute with different parts of each matrix
  int gtp = 1;  // number of ranks that store different shards of the same part and read different samples
  int dp = 1;   // number of replicas of the model
  std::optional<ExpertDegrees> experts = std::nullopt;  // nullopt for a model without experts
  std::vector<int> unused = {};                         // places of the grid (tp, gtp, dp) without a rank, ascending

  std::int64_t places() const { return static_cast<std::int64_t>(tp) * gtp * dp; }
  // Returns the number of ranks of a replica that store the same part of an expert.
  int edp() const { return experts ? tp * gtp / (experts->etp * experts->ep * experts->egtp) : 1; }
};

// The index of the experts' domain in RankLayout::domains. Domain 0 is the domain of the dense weights.
inline constexpr int kExpertDomain = 1;

// The place of a rank among the ranks that compute with one layer's experts.
struct ExpertPlace {
  shard::AxisPlace etp, ep;
};
// Throws Error if the program has no domain of experts.
ExpertPlace expert_place(const runtime::Program& program);

// Throws InputError for expert degrees that do not fit the replica, see rank_layout.
void check_expert_degrees(const MeshDegrees& degrees);
// Returns the mesh and the domains. The dense grid has the axes tp, gtp and dp. Throws InputError for: a degree below
// 1; too many ranks; expert degrees that do not fit the replica. The expert degrees fit if etp * ep * egtp divides tp *
// gtp, etp divides tp, and tp divides etp * ep. Pure; every rank passes the same degrees.
shard::RankLayout rank_layout(const MeshDegrees& degrees);

}  // namespace tessera::nn
