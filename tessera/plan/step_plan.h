// Plans a step without tensors, ranks or a run, for `tessera plan`.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/predict/planned_replica.h"
#include "tessera/predict/planned_step.h"
#include "tessera/settings/resolved_run.h"
#include "tessera/settings/text/byte_size.h"

namespace tessera::plan {

using predict::LastingBytes, predict::MemoryUse, predict::RankWork, predict::RoleBytes, predict::StepPlan,
    predict::Traffic;

struct StepPlanRequest {
  settings::ResolvedRun run;
  predict::Machine machine = {};
  schedule::StepKind kind = schedule::StepKind::train;
  settings::Budget gather_budget = run->gather_budget.value, reduce_budget = run->reduce_budget.value;
  std::int64_t coalesce_bytes = run->coalesce.value;
  std::optional<schedule::Trace> trace =
      std::nullopt;             // trace that a run recorded; nullopt: the trace of a dry step is planned
  double expert_load = 1;       // number of rows of the busiest owner of experts, divided by the mean
  bool has_given_batch = true;  // false: no flag sets the global batch, which follows from the mesh
  double memory_margin = 0.03;  // share of a processor's memory that the plan leaves free
  // If set, `run` is one replica of a larger mesh with unused places (replica_kinds.h).
  std::optional<predict::ReplicaOfMesh> replica = std::nullopt;
  std::vector<nn::Recompute> recompute = {};  // recompute policy of each block; empty: recompute_choice of `run`
};

// Returns the bytes of a processor that a plan may use: its memory without the margin of the request. Returns 0 if the
// machine file does not state the memory.
std::int64_t usable_bytes(const StepPlanRequest& request);
// Returns the bytes that a rank needs beyond usable_bytes. Returns 0 if the memory fits or if the machine file does not
// state the memory.
std::int64_t missing_bytes(const MemoryUse& memory, const StepPlanRequest& request);
inline bool fits(const MemoryUse& memory, const StepPlanRequest& request) {
  return missing_bytes(memory, request) == 0;
}

// Returns the keys of the machine file that nobody measured (predict::Machine::unmeasured) and on which the prediction
// depends. A rate of a link counts if the mesh uses the link.
std::vector<std::string> unmeasured_keys(const StepPlanRequest& request);

// Returns the predicted seconds of the operators' work in a step without recomputation, without the machine's costs of
// starting operators, and without waits. The counterpart of the limit of `bench step`. `known`: as for prepare_step().
double limit_seconds(const StepPlanRequest& request, const std::vector<predict::PlannedParameter>& known = {});

// Returns the options of the dry step for the request, including the choice of blocks that recompute activations.
predict::DryOptions dry_options_of(const StepPlanRequest& request);
// Returns the input from which the durations of a dry step are predicted. `options` outlives the result.
predict::CostInput cost_input_of(const StepPlanRequest& request, const predict::DryOptions& options);

// The largest number of events in a planned step. Planning that many events takes some seconds and some hundred
// megabytes.
inline constexpr std::int64_t kMaxEvents = 4'000'000;

// Throws InputError for: a budget below the smallest that can run; a machine file without flops for the model's type;
// more than kMaxEvents events.
StepPlan plan_step(const StepPlanRequest& request);

// The parts of a plan that depend neither on the number of microbatches nor on budgets.
struct PreparedStep {
  predict::DryOptions options;
  // The steps of the ranks with the most work. The first step gives the events. There are several steps only if one
  // replica is planned alone.
  std::vector<predict::DryStep> dry;
  std::vector<predict::PlannedParameter> parameters;  // by id
  std::optional<predict::ReplicaParameters> replica;  // of a replica that is planned alone
};
// If `known` is not empty, it must be the `parameters` of a request that differs at most in the policy of
// recomputation. They are then not computed again. On meshes with many ranks, most of the time is spent on them. A
// request with `replica` ignores `known`.
PreparedStep prepare_step(const StepPlanRequest& request, const std::vector<predict::PlannedParameter>& known = {});
// Plans a prepared step. `prepared` may belong to a request with another number of microbatches. If `schedule` is not
// null, predicts the step with this schedule, which must belong to a step with the same events and buffer sizes. In
// this case the plan has no `on_demand` and no traffic.
StepPlan plan_step(const StepPlanRequest& request, const PreparedStep& prepared,
                   const schedule::Schedule* schedule = nullptr);
// Checks that the steps of a run can be planned, before the run begins. Throws InputError for a budget below the
// smallest that can run.
void check_budgets(const settings::ResolvedRun& run);

}  // namespace tessera::plan
