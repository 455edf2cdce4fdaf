// The output of `tessera plan --search`: meshes as JSON and as text.
#pragma once
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/plan/search/mesh_search.h"

namespace tessera::plan {

// Returns the times that compute waits, in milliseconds, by cause: {"gathers", "gradients", "activations",
// "slowest_rank", "total"}.
nlohmann::ordered_json exposed_json(const StepSeconds& seconds);

// Returns the plans of search_meshes as JSON:
// {"model", "machine", "ranks", "global_batch", "seq_len", "tokens", "dtype",
//  "usable_bytes", "unmeasured": as in plan_json,
//  "meshes": [{"tp", "gtp", "dp", and with experts "etp", "ep", "egtp", "edp",
//              "micro_batch", "microbatches", "recompute", "sequence_parallel", "flags",
//              "step_ms", "tokens_per_second", "mfu", "compute_ms",
//              "exposed_ms": exposed_json,
//              "memory_bytes": the keys of plan_json, "fits", "missing_bytes"}],              best first
//  "fits": whether the first mesh fits, "reason"}
// "tokens" counts a whole step of all ranks.
nlohmann::ordered_json search_json(const StepPlanRequest& request, const std::vector<MeshPlan>& meshes);

// Returns a table with the first `rows` meshes, and the reason why the first mesh is the best.
std::string search_text(const StepPlanRequest& request, const std::vector<MeshPlan>& meshes, std::size_t rows);

}  // namespace tessera::plan
