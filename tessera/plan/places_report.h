// The output of `tessera plan` for a mesh with unused places, as JSON and as text.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/plan/continuations.h"
#include "tessera/plan/search/plan_flags.h"

namespace tessera::plan {

// The plan of a mesh with unused places. The request is that of the whole mesh.
struct PlacesPlan {
  MeshStep step;                      // the step with the shares that the settings choose
  ContinuationComparison comparison;  // the comparison for the unused places of the settings
};
PlacesPlan plan_places(const StepPlanRequest& request, ReplicaPlans& plans);

// {"model", "machine", "mesh": {"ranks", "tp", "gtp", "dp", "dead", "idle", "tp_spares", "reduced_batch"},
//  "global_batch", "tokens",
//  "predicted": {"step_ms", "tokens_per_second", "mfu"}, "fits", "usable_bytes", "unmeasured": as in plan_json,
//  "kinds": [{"groups": [ranks of each tp group], "dp": [replicas], "ranks", "updates_state", "sequences",
//             "microbatches", "step_ms", "compute_ms",
//             "exposed_ms": {"gathers", "gradients", "activations", "slowest_rank", "total"},
//             "memory_bytes": the keys of plan_json, "fits",
//             "ranks_of_groups": [{"group_ranks", "adopt", "compute_ms", "activations_bytes",
//                                  "imbalance": {"heads", "ffn", "vocabulary"}}]}],
//  "comparison": {"unused", "affected_replicas", "replicas", "full_step_ms",
//                 "ways": [{"way", "ranks", "reduced_batch", "idle", "step_ms", "slowest", "microbatches", "kept",
//                           "kept_if_divisible", "memory_bytes", "fits"}, or {"way", "refusal"}],
//                 "recommended": null if no way is possible or fits, "reason"}}
nlohmann::ordered_json places_json(const StepPlanRequest& request, const PlacesPlan& plan);
std::string places_text(const StepPlanRequest& request, const PlacesPlan& plan);

// The comparison for one random choice of dead places.
struct Draw {
  std::uint64_t seed = 0;
  settings::PlaceMap dead;
  ContinuationComparison comparison;
};
// Calls `progress` after each draw, with the number of planned draws and of all draws.
using DrawProgress = std::function<void(std::size_t planned, std::size_t all)>;
std::vector<Draw> draw_dead_places(const StepPlanRequest& request, const DeadDraws& draws, ReplicaPlans& plans,
                                   const DrawProgress& progress = {});
// {"model", "machine", "mesh", "global_batch", "tokens", "share",
//  "draws": [{"seed", "dead", and the keys of "comparison" of places_json}],
//  "mean": [{"way", "possible": number of draws, "kept", "kept_if_divisible"}]}
nlohmann::ordered_json draws_json(const StepPlanRequest& request, const DeadDraws& draws,
                                  const std::vector<Draw>& drawn);
std::string draws_text(const StepPlanRequest& request, const DeadDraws& draws, const std::vector<Draw>& drawn);

}  // namespace tessera::plan
