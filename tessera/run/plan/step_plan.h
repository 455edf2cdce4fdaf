// Plans a step without tensors, ranks or a run, for `tessera plan`.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/model_config.h"
#include "tessera/predict/costs.h"
#include "tessera/predict/planned_replica.h"
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
  // Set: `config` is a mesh of one replica of a larger mesh with unused places (replica_kinds.h).
  std::optional<predict::ReplicaOfMesh> replica = std::nullopt;
  std::vector<nn::Recompute> recompute = {};  // by block; empty: recompute_choice of the config
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
  int domain = 0;       // domain of parameters, or of the program's collectives
  std::string purpose;  // a hop (name_of an activity), "rows" of tables, or "program"
  std::string over;     // the axes, as in "egtp x edp"
  std::int64_t bytes = 0;
};

// Bytes received in a step.
struct Traffic {
  std::int64_t gathered = 0, reduced = 0;  // reduced: sums over tp, gtp and dp
};

// The ranks of a replica whose tp groups have equally many ranks.
struct RankWork {
  int group_ranks = 1;           // of the tp group
  double compute_seconds = 0;    // of a step, of the rank that computes longest
  std::int64_t activations = 0;  // peak bytes
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
  std::vector<RankWork> ranks;  // if the request plans a replica: by ranks of the tp group, descending
  std::vector<std::string> names() const;
  // The parts of prediction.comm_exposed_seconds: waits for the slowest rank, and for the program's collectives.
  double slowest_rank_seconds() const { return costs.costs.end_seconds; }
  double activations_seconds() const { return prediction.comm_exposed_seconds - slowest_rank_seconds(); }
};

// Fills in settings that follow from other settings: grad_wire, ranks, dp, seq_len. A global batch that is not given
// becomes one microbatch. Throws InputError as resolve_ranks and resolve_model do.
TrainConfig resolve_plan_config(TrainConfig config, const models::ModelConfig& model);

// Returns the number of microbatches of a step; if places are unused, that of the replica with the most.
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

// The parts of a plan that depend neither on the number of microbatches nor on budgets.
struct PreparedStep {
  predict::DryOptions options;
  // The steps of the ranks with most work; only a replica that is planned alone may have several. The first gives the
  // events.
  std::vector<predict::DryStep> dry;
  std::vector<predict::PlannedParameter> parameters;  // by id
  std::optional<predict::ReplicaParameters> replica;  // of a replica that is planned alone
};
PreparedStep prepare_step(const StepPlanRequest& request);
// Plans a prepared step. `prepared` may belong to a request with another number of microbatches. If `schedule` is not
// null, predicts the step with this schedule, which must belong to a step with the same events and sizes of buffers;
// then the plan has no `on_demand` and no traffic.
StepPlan plan_step(const StepPlanRequest& request, const PreparedStep& prepared,
                   const schedule::Schedule* schedule = nullptr);
// Checks that the steps of a resolved run can be planned, before the run begins. Throws InputError for a budget below
// the smallest that can run.
void check_budgets(const TrainConfig& config, const models::ModelConfigPtr& model);

}  // namespace tessera::run
