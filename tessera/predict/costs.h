// Predicts the durations of a step's events on a machine. A dry run (dry_step.h) reports the flops and bytes of each
// operator. A product or an attention takes the time of its flops or the time of its bytes, whichever is longer. Any
// other operator takes the time of its bytes. Machine::operator_s is added for each operator. Machine::handover_s is
// added for each event that passes a weight or a gradient between compute and a transfer. At the end of a step, ranks
// wait for the slowest rank (Machine::rank_spread).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/predict/dry_step.h"
#include "tessera/predict/machine.h"
#include "tessera/predict/planned_parameters.h"
#include "tessera/schedule/simulate.h"

namespace tessera::predict {

struct CostInput {
  const Machine& machine;
  const shard::RankLayout& layout;
  shard::ParameterTypes types;
  const ops::UpdatePolicy& update;
  double expert_load = 1;  // number of rows of the busiest owner of experts, divided by the mean
  std::int64_t ranks = 0;  // number of ranks of the run if `layout` describes only one replica; 0: those of `layout`

  std::int64_t world_size() const { return ranks > 0 ? ranks : layout.mesh.world_size(); }
};

struct StepCosts {
  schedule::Costs costs;
  std::vector<std::string> work;  // by event: names of the operators that compute runs before the event
  double expert_products = 0;     // seconds that products with experts' weights take in the whole trace
};

// Returns the number of ranks in `group`, the group of a comm event. The group is either all ranks, or the compute
// ranks of the domain with this name (shard::program_name). Throws Error if no domain has the name.
int ranks_of_group(const shard::RankLayout& layout, const std::string& group);
// Returns the durations of segments and of the program's collectives. `trace` is dry.trace() for any number of
// microbatches, or a trace that a run recorded. An event that is not in `dry` takes no time. Throws InputError if the
// machine file has no flops for the model's type.
StepCosts event_costs(const CostInput& input, const DryStep& dry, const schedule::Trace& trace,
                      const std::vector<PlannedParameter>& parameters);
// Raises each duration in `costs` to the duration of the same segment in `other`, if that is longer. Both steps have
// the same events. Called for several ranks, it gives the durations of the slowest rank of each segment.
void raise(StepCosts& costs, const StepCosts& other);
// Writes the durations of the schedule's transfers and of publish events to `costs`.
void set_transfer_costs(const CostInput& input, const schedule::Trace& trace,
                        const std::vector<PlannedParameter>& parameters, const schedule::Schedule& schedule,
                        schedule::Costs& costs);
// Like set_transfer_costs, but the duration of a reduction also includes the time to add the gradients. Also writes the
// durations of the schedule's columnwise copies.
void set_unit_costs(const CostInput& input, const schedule::Trace& trace,
                    const std::vector<PlannedParameter>& parameters, const schedule::Schedule& schedule,
                    schedule::Costs& costs);

// Returns the time in which compute makes one columnwise copy of each weight.
double columnwise_seconds(const CostInput& input, const std::vector<PlannedParameter>& parameters);

}  // namespace tessera::predict
