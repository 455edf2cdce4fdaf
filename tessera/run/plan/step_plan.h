// Plans a step without tensors, ranks or a run, for `tessera plan`.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/model_config.h"
#include "tessera/predict/costs.h"
#include "tessera/run/config/byte_size.h"
#include "tessera/run/config/config.h"
#include "tessera/schedule/plan/auto.h"

namespace tessera::run {

struct StepPlanRequest {
  TrainConfig config;  // resolved (resolve_plan_config)
  models::ModelConfigPtr model;
  predict::Machine machine;
  schedule::StepKind kind = schedule::StepKind::train;
  Budget gather_budget, reduce_budget;
  std::int64_t coalesce_bytes = std::int64_t{1} << 20;  // --coalesce
  std::optional<schedule::Trace> trace;                 // recorded by a run; nullopt: the trace of a dry step
  double expert_load = 1;                               // rows of the busiest owner of experts, divided by the mean
};

// Bytes that a rank keeps between steps, of parameters of one kind.
struct LastingBytes {
  std::int64_t weights = 0;    // shards in the model's type
  std::int64_t gradients = 0;  // main_grad
  std::int64_t masters = 0, moments = 0;
  std::int64_t total() const { return weights + gradients + masters + moments; }
};

// Peak bytes of the rank that needs the most memory.
struct MemoryUse {
  LastingBytes dense, experts;   // parts of the numbers below
  std::int64_t weights = 0;      // shards in the model's type
  std::int64_t gathered = 0;     // the gather arena, and buffers of rows read by index
  std::int64_t gradients = 0;    // main_grad, the reduce arena and its scratch
  std::int64_t optimizer = 0;    // master and moments
  std::int64_t activations = 0;  // peak of the bytes that are kept for backward
  std::int64_t overhead = 0;     // memory that no plan allocates (predict::MemoryOverhead)
  std::int64_t total() const { return weights + gathered + gradients + optimizer + activations + overhead; }
};

// Returns whether the memory is at most that of the machine's processor, or the machine does not state it.
bool fits(const MemoryUse& memory, const predict::Machine& machine);

// Bytes that a rank receives in a step over the ranks of one role.
struct RoleBytes {
  int domain = 0;       // of parameters, or of the program's collectives
  std::string purpose;  // a hop (name_of an activity), "rows" of tables, or "program"
  std::string over;     // the axes, as in "egtp x edp"
  std::int64_t bytes = 0;
};

// Bytes received in a step.
struct Traffic {
  std::int64_t gathered = 0, reduced = 0;  // reduced: sums over tp, gtp and dp
};

struct StepPlan {
  std::vector<predict::PlannedParameter> parameters;  // by id
  schedule::Trace trace;                              // the events of the last tp rank
  schedule::Schedule schedule;
  predict::StepCosts costs;
  schedule::Prediction prediction, on_demand;  // on_demand: without a schedule
  MemoryUse memory;
  Traffic busiest_rank, all_ranks;  // busiest_rank: the rank that receives most
  // The weights and gradients of busiest_rank, and the activations that the rank of `trace` receives in the program's
  // collectives; roles that receive no bytes are omitted.
  std::vector<RoleBytes> roles;
  std::vector<std::string> names() const;
  // The parts of prediction.comm_exposed_seconds: waits for the slowest rank, and for the program's collectives.
  double slowest_rank_seconds() const { return costs.costs.end_seconds; }
  double activations_seconds() const { return prediction.comm_exposed_seconds - slowest_rank_seconds(); }
};

// Fills in settings that follow from other settings: grad_wire, ranks, dp, seq_len. A global batch that is not given
// becomes one microbatch. Throws InputError as resolve_ranks and resolve_model do.
TrainConfig resolve_plan_config(TrainConfig config, const models::ModelConfig& model);

// Returns the number of microbatches of a step.
std::int64_t microbatches_of(const TrainConfig& config);
// Returns the options of the dry step that the request plans, with the run's choice of recomputed blocks.
predict::DryOptions dry_options_of(const StepPlanRequest& request);
// Returns the input from which the durations of a dry step are predicted. `layout` outlives the result.
predict::CostInput cost_input_of(const StepPlanRequest& request, const shard::RankLayout& layout);

// Largest number of events of a planned step. Planning this number takes some seconds and some hundred megabytes.
inline constexpr std::int64_t kMaxEvents = 4'000'000;

// Throws InputError for a budget below the smallest that can run, for a machine without flops for the type, and for
// more than kMaxEvents events.
StepPlan plan_step(const StepPlanRequest& request);
// Checks that the steps of a resolved run can be planned, before the run begins. Throws InputError for a budget below
// the smallest that can run.
void check_budgets(const TrainConfig& config, const models::ModelConfigPtr& model);

}  // namespace tessera::run
