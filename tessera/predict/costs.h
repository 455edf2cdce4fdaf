// Predicts the durations of a step's events on a machine. The model's operators report their flops and bytes
// (dry_step.h). A product or attention takes the time of its flops or of its bytes, whichever is longer. All other work
// takes the time of its bytes. Each operator takes Machine::operator_s more, and each
// event that passes a weight or a gradient between compute and a transfer takes Machine::handover_s. At the end of a
// step, ranks wait for the slowest (Machine::rank_spread).
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
  double expert_load = 1;  // rows of the busiest owner of experts, divided by the mean
  std::int64_t ranks = 0;  // of the run, if the layout is that of one replica of the run; 0: those of the layout

  std::int64_t world_size() const { return ranks > 0 ? ranks : layout.mesh.world_size(); }
};

struct StepCosts {
  schedule::Costs costs;
  std::vector<std::string> work;  // by event: names of the operators that compute runs before it
  double expert_products = 0;     // seconds of products with weights of experts, in the whole trace
};

// Returns the number of ranks of a collective of the program: all ranks, or the compute ranks of the domain that the
// group names (shard::program_name). Throws Error if no domain has the name.
int ranks_of_group(const shard::RankLayout& layout, const std::string& group);
// Returns the durations of segments and of the program's collectives. `trace` is dry.trace() with any number of
// microbatches, or a trace that a run recorded. An event that is not in `dry` takes no time. Throws InputError if the
// machine has no flops for the type.
StepCosts event_costs(const CostInput& input, const DryStep& dry, const schedule::Trace& trace,
                      const std::vector<PlannedParameter>& parameters);
// Sets the durations of `costs` to those of `other` where these are longer. The steps have the same events. The result
// has the durations of the slowest of several ranks, segment by segment.
void raise(StepCosts& costs, const StepCosts& other);
// Sets the durations of the transfers of the schedule's units and of publishes in `costs`.
void set_transfer_costs(const CostInput& input, const schedule::Trace& trace,
                        const std::vector<PlannedParameter>& parameters, const schedule::Schedule& schedule,
                        schedule::Costs& costs);
// Sets the same durations as set_transfer_costs, but the durations of reductions include the sums of their gradients.
void set_unit_costs(const CostInput& input, const schedule::Trace& trace,
                    const std::vector<PlannedParameter>& parameters, const schedule::Schedule& schedule,
                    schedule::Costs& costs);

}  // namespace tessera::predict
