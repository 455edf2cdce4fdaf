// Steps of a model whose module runs dry: they take as long as a machine is predicted to take for its operators.
#pragma once
#include <memory>
#include <vector>

#include "tessera/bench/timed_steps.h"
#include "tessera/models/model_config.h"
#include "tessera/predict/costs.h"
#include "tessera/run/config/config.h"

namespace tessera::bench {

// What all ranks share; unchanged while steps run.
struct TimedModel {
  predict::DryOptions options;
  int microbatches = 1;
  predict::DryStep step;
  std::vector<predict::PlannedParameter> parameters;  // by id
  schedule::Costs costs;                              // of the program alone; by event of the whole step
  bool alike = true;  // the tp ranks have equal parts of everything, and none is held twice: one stands for all

  double forward_seconds() const;  // of one microbatch, computing
};

// config: resolved, without rows by index; model outlives what is made. Errors: as predict::event_costs.
TimedModel timed_model(const run::TrainConfig& config, const models::ModelConfig& model,
                       const predict::Machine& machine);

// `model` outlives what they make.
MakeTimedSteps steps_of(const TimedModel& model);

}  // namespace tessera::bench
