// The replicas of a mesh with unused places, by kind. Pure.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/run/config/config.h"
#include "tessera/run/config/places.h"
#include "tessera/run/plan/step_plan.h"

namespace tessera::run {

// Replicas whose tp groups have equal numbers of ranks. Replicas of one kind may differ in the slots that live. They
// are planned as one replica: one that updates the optimizer's state (ZeRO-1) if the kind has such a replica, else the
// replica whose unused slots are the highest. The lowest ranks of a tp group adopt first, and the parts of the highest
// slots are farthest from theirs, so these ranks need most key/value heads.
struct ReplicaKind {
  std::vector<int> replicas;  // dp coordinates, ascending
  std::vector<int> live;      // ranks of each tp group with a rank, descending
  PlaceMap unused;            // unused slots of the planned replica, as replica 0
  bool is_reduced = false;    // a tp group lacks ranks
  bool updates = true;        // the planned replica updates a part of the optimizer's state (ZeRO-1)

  std::int64_t ranks() const;  // of one replica
};

struct ReplicaKinds {
  std::vector<ReplicaKind> kinds;  // the kind with the most ranks first
  int replicas = 0;                // with a rank
  int updating = 0;                // replicas that update the optimizer's state: the largest class of equal shapes
  bool all_reduces = false;        // predict::ReplicaOfMesh::all_reduces

  bool any_reduced() const;
  std::int64_t ranks() const;
};
// `config`: with tp, gtp and dp.
ReplicaKinds replica_kinds(const PlaceMap& unused, const TrainConfig& config);

// Returns the request for a step of one replica of the kind with this number of microbatches. `request`: of the mesh,
// with a resolved config.
StepPlanRequest request_of(const ReplicaKind& kind, const ReplicaKinds& kinds, StepPlanRequest request,
                           std::int64_t microbatches);

// Returns "full", or for example "7 x 32 + 31 of 32 ranks": its tp groups with their numbers of ranks.
std::string kind_text(const ReplicaKind& kind, const TrainConfig& config);

// Returns the places with the tp groups of each replica, and the slots of each tp group, in another order: groups with
// fewer ranks follow those with more, and the highest slots are unused. Replicas of one kind become equal.
PlaceMap in_order_of_ranks(const PlaceMap& unused, const TrainConfig& config);

// Returns round(share * places) different places of the mesh as dead slots. The places depend on the seed alone.
PlaceMap dead_at_random(double share, std::uint64_t seed, const TrainConfig& config);

}  // namespace tessera::run
