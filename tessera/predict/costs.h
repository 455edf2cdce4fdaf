// Predicted durations of a step's events on a machine: products and attention by flops or by bytes, whichever takes
// longer, everything else by bytes, as the model's operators report them (dry_step.h).
#pragma once
#include <string>
#include <vector>

#include "tessera/predict/dry_step.h"
#include "tessera/predict/machine.h"
#include "tessera/predict/planned_parameters.h"
#include "tessera/schedule/simulate.h"

namespace tessera::predict {

struct CostInput {
  const Machine& machine;
  MeshDegrees mesh;
  shard::ParameterTypes types;
};

struct StepCosts {
  schedule::Costs costs;
  std::vector<std::string> work;  // by event: what the compute before it does; empty: nothing
};

// Of segments and the program's collectives. trace: dry's, of any number of microbatches, or one that a run recorded;
// an event that dry has not takes no time. Errors: InputError for a machine without flops for the type.
StepCosts event_costs(const CostInput& input, const DryStep& dry, const schedule::Trace& trace,
                      const std::vector<PlannedParameter>& parameters);
// Replaces those of the schedule's units and of publishes.
void set_unit_costs(const CostInput& input, const schedule::Trace& trace,
                    const std::vector<PlannedParameter>& parameters, const schedule::Schedule& schedule,
                    schedule::Costs& costs);

}  // namespace tessera::predict
