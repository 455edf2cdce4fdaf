// Timed steps of a model in a dry run. Each operator takes its predicted time on a machine.
#pragma once
#include <memory>
#include <vector>

#include "tessera/bench/timed_steps.h"
#include "tessera/predict/costs.h"
#include "tessera/settings/resolved_run.h"

namespace tessera::bench {

// The state that all ranks share. The state does not change while steps run.
struct TimedModel {
  predict::DryOptions options;
  int microbatches = 1;
  predict::DryStep step;
  std::vector<predict::PlannedParameter> parameters;  // by id
  schedule::Costs costs;    // costs of compute and of the program's collectives, by event of the whole step
  bool equal_ranks = true;  // whether the tp ranks have equal parts without overlaps, so that one rank represents all

  double forward_seconds() const;  // compute time of one microbatch
};

// The program of the run reads no rows by index. Throws the errors of predict::event_costs.
TimedModel timed_model(const settings::ResolvedRun& run, const predict::Machine& machine);

// `model` must outlive the steps.
MakeTimedSteps steps_of(const TimedModel& model);

}  // namespace tessera::bench
