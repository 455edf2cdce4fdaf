#include "tessera/bench/model_steps.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/bench/timed_program.h"
#include "tessera/predict/dry_model.h"
#include "tessera/predict/recompute_choice.h"
#include "tessera/settings/trainer_options.h"
#include "tessera/shard/parameter_layouts.h"

namespace tessera::bench {
namespace {

predict::DryOptions of_rank(predict::DryOptions options, int rank) {
  options.rank = rank;
  return options;
}

// Returns whether the tp ranks have equal parts of all weights and of the tokens, without overlaps.
bool are_ranks_equal(const predict::DryOptions& options, const predict::DryStep& step) {
  const auto overlaps = [](const shard::ParameterSpec& spec) { return shard::layouts_of(spec).overlaps(); };
  return std::ranges::none_of(step.parameters, overlaps) && predict::kinds_of_ranks(options).size() == 1;
}

class ModelSteps final : public TimedSteps {
 public:
  ModelSteps(shard::ParallelGroups& parallel, const TimedModel& model, const runtime::RuntimeOptions& options)
      : model_(model),
        runtime_(parallel, model.options.step.types, options),
        program_(runtime_, model.costs.segment_seconds),
        module_(program_, of_rank(model.options, parallel.rank)) {}

  void step(int microbatches) override {
    TESSERA_CHECK(microbatches == model_.microbatches, "a step of {} microbatches, expected {}", microbatches,
                  model_.microbatches);
    program_.begin_step(schedule::StepKind::train, microbatches);
    for (int microbatch = 0; microbatch < microbatches; ++microbatch) module_.microbatch(microbatch, true);
    program_.end_step();
    dry_update(program_, program_.trace(), module_.update_parts());
  }

  runtime::Runtime& runtime() override { return runtime_; }
  const std::vector<double>& segments() const override { return model_.costs.segment_seconds; }
  const std::vector<int>& comm_waits() const override { return program_.waits(); }

 private:
  const TimedModel& model_;
  runtime::Runtime runtime_;
  TimedProgram program_;
  predict::DryModel module_;
};

}  // namespace

double TimedModel::forward_seconds() const {
  double seconds = 0;
  for (std::size_t i = 0; i < step.microbatch.size(); ++i)
    if (step.microbatch[i].pass == schedule::Pass::forward) seconds += costs.segment_seconds[i];
  return seconds;
}

TimedModel timed_model(const settings::ResolvedRun& run, const predict::Machine& machine) {
  TimedModel timed{.options = settings::dry_options(run, nn::BlockRecompute(settings::recompute_choice(run))),
                   .microbatches = static_cast<int>(run.microbatches())};
  timed.step = predict::dry_step(timed.options);
  timed.parameters = planned_parameters(timed.step, timed.options.step.types);
  const predict::CostInput input{.machine = machine,
                                 .layout = timed.options.step.layout,
                                 .types = timed.options.step.types,
                                 .update = *timed.options.update};
  timed.costs = event_costs(input, timed.step, timed.step.trace(timed.microbatches), timed.parameters).costs;
  timed.equal_ranks = are_ranks_equal(timed.options, timed.step);
  return timed;
}

MakeTimedSteps steps_of(const TimedModel& model) {
  return [&model](shard::ParallelGroups& parallel, const runtime::RuntimeOptions& options) {
    return std::make_unique<ModelSteps>(parallel, model, options);
  };
}

}  // namespace tessera::bench
