// The output of `tessera plan`: a planned step as JSON and as text.
#pragma once
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "tessera/plan/plan_head.h"
#include "tessera/plan/step_plan.h"

namespace tessera::plan {

// Returns the plan as JSON:
// {"model", "machine", "step",
//  "mesh": {"ranks", "tp", "gtp", "dp"}, and of a model with experts {"etp", "ep", "egtp", "edp"},
//  "global_batch", "microbatches", "tokens", "events",
//  "memory_bytes": {"weights", "gathered", "gradients", "optimizer", "activations", "transfers", "matrices",
//    "overhead", "total"},
//  "fits", "usable_bytes": null if the machine file does not state the memory, "missing_bytes": 0 if the plan fits,
//  "kept_bytes": {"dense": {"weights", "gradients", "masters", "moments", "total"}, "experts": the same keys}
//  "update_rules": rules_json (predict/update_bytes.h) of a rank
//  "arenas": {"gather_bytes", "reduce_bytes", "scratch_bytes"},
//  "traffic": {"gathered_bytes", "reduced_bytes"}                       of the rank that receives the most bytes
//  "traffic_by_role": [{"parameters": "dense" or "experts", "purpose", "over", "bytes"}]                 of that rank,
//                     including activations in the program's collectives, which "traffic" does not count
//  "traffic_all_ranks": the keys of "traffic", summed over all ranks
//  "predicted": {"step_ms", "compute_ms", "exposed_comm_ms", "exposed_gather_ms", "exposed_reduce_ms",
//                "exposed_group_ms", "exposed_slowest_ms", "exposed_ms": {"weights", "tp"}, "limit_ms", "limit_ratio",
//                "tokens_per_second", "mfu"},
//                exposed_ms: the causes of exposed_comm_ms, as in `bench step`. limit_ms: limit_seconds (step_plan.h)
//  "unmeasured": keys of the machine file that nobody measured and on which "predicted" depends
//  "on_demand": {"step_ms", "exposed_comm_ms"},                         the same step without a schedule
//  "gathers": [{"weights", "issue", "free", "wait", "last", "offset", "bytes"}],
//  "columnwise_copies": [{"weights", "make", "last", "offset", "bytes"}],
//  "reductions": [{"weights", "microbatch", "first", "issue", "finish", "replicas", "offset", "bytes"}],
//  "experts": {"load", "layouts": [{"etp", "ep", "egtp", "products_ms", "weights_ms", "tokens_ms", "total_ms"}],
//              "recommended": {"etp", "ep", "egtp"}, or null if the plan does not fit, "reason"}}
//                                                                       of a model with experts (expert_layouts.h)
// The positions in "gathers", "columnwise_copies" and "reductions" are defined in schedule/schedule.h. "tokens" counts
// a whole step of all ranks.
nlohmann::ordered_json plan_json(const StepPlanRequest& request, const StepPlan& step);

// plan_head() returns the first lines of the text (plan_head.h). plan_details() returns the rest, with the first `rows`
// gathers, columnwise copies and reductions.
std::string plan_head(const StepPlanRequest& request, const StepPlan& step);
std::string plan_details(const StepPlanRequest& request, const StepPlan& step, std::size_t rows);

// Returns usable_bytes() of the request, or null if the machine file does not state the memory.
nlohmann::ordered_json usable_json(const StepPlanRequest& request);

// Returns MemoryUse as {"weights", "gathered", "gradients", "optimizer", "activations", "transfers", "matrices",
// "overhead", "total"}, in bytes.
nlohmann::ordered_json memory_json(const MemoryUse& memory);

}  // namespace tessera::plan
