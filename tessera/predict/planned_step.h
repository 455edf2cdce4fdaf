// A planned step: its schedule, and the predicted time, memory and traffic.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/predict/costs.h"
#include "tessera/predict/update_bytes.h"

namespace tessera::predict {

// Bytes that a rank keeps between steps for dense parameters, or for experts.
struct LastingBytes {
  std::int64_t weights = 0;    // shards in the model's type
  std::int64_t gradients = 0;  // main_grad
  std::int64_t masters = 0, moments = 0;
  std::int64_t total() const { return weights + gradients + masters + moments; }
};

// Peak bytes of the rank that needs the most memory.
struct MemoryUse {
  LastingBytes dense, experts;   // shares of dense parameters and of experts in the numbers below
  std::int64_t weights = 0;      // shards in the model's type
  std::int64_t gathered = 0;     // the gather arena, and the buffers of rows that are read by index
  std::int64_t gradients = 0;    // main_grad, the reduce arena and its scratch
  std::int64_t optimizer = 0;    // masters and moments
  std::int64_t activations = 0;  // peak of the bytes of activations that are kept for backward
  std::int64_t transfers = 0;    // the transfer arena
  std::int64_t matrices = 0;     // u, X and the scratch of rules of whole matrices
  std::int64_t overhead = 0;     // memory that no plan allocates (predict::MemoryOverhead)
  std::int64_t total() const {
    return weights + gathered + gradients + optimizer + activations + transfers + matrices + overhead;
  }
};

// Bytes that a rank receives in a step through the communicators of one role.
struct RoleBytes {
  int domain = 0;  // domain of the parameters or of the program's collectives
  // The title of a hop, of the rows of tables, or of the program's collectives (mesh/transfer.h).
  std::string purpose;
  std::string over;  // the axes of the role, such as "egtp x edp"
  std::int64_t bytes = 0;
};

// Bytes received in a step.
struct Traffic {
  // Bytes that gathers of weights receive, and bytes that reductions of gradients over tp, gtp and dp receive.
  std::int64_t gathered = 0, reduced = 0;
};

// The work of the ranks in a replica whose tp groups have the same number of ranks.
struct RankWork {
  int group_ranks = 1;           // number of ranks in each of these tp groups
  double compute_seconds = 0;    // compute time of a step, of the rank that computes longest
  std::int64_t activations = 0;  // peak bytes of activations
};

struct StepPlan {
  std::vector<PlannedParameter> parameters;  // by id
  schedule::Trace trace;                     // trace of the last tp rank
  schedule::Schedule schedule;
  StepCosts costs;
  schedule::Prediction prediction, on_demand;  // on_demand: the prediction without a schedule
  MemoryUse memory;
  std::vector<RuleBytes> rules;     // result of rules_of_rank
  Traffic busiest_rank, all_ranks;  // busiest_rank: traffic of the rank that receives the most bytes
  // By role: received bytes. For weights and gradients, the busiest rank counts; for activations in the program's
  // collectives, the rank of `trace`. Roles without bytes are omitted.
  std::vector<RoleBytes> roles;
  std::vector<RankWork> ranks;  // set if the request plans a replica; in descending order of group_ranks
  std::vector<std::string> names() const;
  // The two parts of prediction.comm_exposed_seconds: waits for the slowest rank, and waits for the program's
  // collectives.
  double slowest_rank_seconds() const { return costs.costs.end_seconds; }
  // Not negative, although the difference of the two sums has a rounding error.
  double activations_seconds() const { return std::max(0.0, prediction.comm_exposed_seconds - slowest_rank_seconds()); }
};

// Returns the bytes of the parameters that a rank keeps between steps. The other numbers of the result are 0. `dry` is
// the step that registers the parameters. `options` are those of the dry step.
MemoryUse lasting_memory(const std::vector<PlannedParameter>& parameters, const DryStep& dry,
                         const DryOptions& options);
// Returns what the update rules of a rank store and move. For each parameter, the rank with the most elements counts.
std::vector<RuleBytes> rules_of_rank(const std::vector<PlannedParameter>& parameters, const DryStep& dry,
                                     const DryOptions& options);
// Throws Error if `schedule` is wrong for a rank of the mesh. All ranks execute the schedule, which belongs to the
// trace and the parameters of `step`.
void check_schedule(const shard::RankLayout& layout, const StepPlan& step, const schedule::Schedule& schedule);
// Sets the schedule of `step`, whose events have costs, and the costs, memory and prediction that follow from it.
void set_schedule(const CostInput& input, schedule::Schedule schedule, StepPlan& step);
// Returns the sizes of the parameters, by id.
std::vector<schedule::ParameterSize> sizes_of(const std::vector<PlannedParameter>& parameters);

}  // namespace tessera::predict
