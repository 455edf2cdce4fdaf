// Groups the replicas of a mesh with unused places by kind. All functions are pure.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/nn/mesh_degrees.h"
#include "tessera/plan/step_plan.h"
#include "tessera/settings/places.h"

namespace tessera::plan {

// A kind of replicas: their tp groups have the same numbers of ranks. Replicas of one kind may have different unused
// slots. One replica is planned for the kind. If some replicas of the kind update the optimizer's state (ZeRO-1), the
// planned replica is one of these. Otherwise the planned replica is the one with the highest unused slots. Its ranks
// need the most key/value heads: the lowest ranks of a tp group adopt first, and the parts of the highest slots are
// farthest from their own parts.
struct ReplicaKind {
  std::vector<int> replicas;  // dp coordinates of the replicas, ascending
  std::vector<int> live;      // number of ranks of each tp group that has ranks, descending
  settings::PlaceMap unused;  // unused slots of the planned replica, with dp coordinate 0
  bool is_reduced = false;    // whether a tp group has fewer ranks than --tp
  bool updates = true;        // whether the planned replica updates a part of the optimizer's state (ZeRO-1)

  std::int64_t ranks() const;  // number of ranks of one replica
};

struct ReplicaKinds {
  std::vector<ReplicaKind> kinds;  // in descending order of the number of ranks
  int replicas = 0;                // number of replicas that have a rank
  // Number of replicas that update the optimizer's state: the size of the largest class of equal replicas.
  int updating = 0;
  bool all_reduces = false;  // predict::ReplicaOfMesh::all_reduces

  bool any_reduced() const;
  std::int64_t ranks() const;
};
ReplicaKinds replica_kinds(const settings::PlaceMap& unused, const nn::MeshDegrees& degrees);

// Returns the request for a step of one replica of the kind with `microbatches` microbatches. `request` is that of the
// whole mesh.
StepPlanRequest request_of(const ReplicaKind& kind, const ReplicaKinds& kinds, StepPlanRequest request,
                           std::int64_t microbatches);

// Returns "full", or the number of ranks in the tp groups of the kind: for example "7 x 32 + 1 x 31 of 8 x 32 ranks".
std::string kind_text(const ReplicaKind& kind, const nn::MeshDegrees& degrees);

// Reorders the unused places so that replicas of one kind become equal. In each replica, tp groups with fewer ranks
// follow those with more ranks. In each tp group, the highest slots are unused.
settings::PlaceMap in_order_of_ranks(const settings::PlaceMap& unused, const nn::MeshDegrees& degrees);

// Returns round(share * places) distinct random places of the mesh as dead slots. The places depend only on the mesh,
// the share and the seed.
settings::PlaceMap dead_at_random(double share, std::uint64_t seed, const nn::MeshDegrees& degrees);

}  // namespace tessera::plan
