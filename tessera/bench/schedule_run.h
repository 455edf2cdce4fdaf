// Timed steps under the runtime between ranks of `local`, beside what the simulator says of the same schedule.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tessera/bench/schedule_costs.h"
#include "tessera/bench/timed_steps.h"
#include "tessera/comm/local/link.h"

namespace tessera::bench {

struct ScheduleRun {
  MakeTimedSteps steps;
  Degrees degrees;
  int microbatches = 1;
  comm::Link link;
  runtime::RuntimeOptions options;
  bool real = false;  // the program and the link sleep; else time is virtual and every run gives the same
};

struct ScheduleTimes {
  // Of a step in the steady state, from begin to begin; of the slowest rank; with `real` the mean of some steps.
  double step_seconds = 0, exposed_seconds = 0;
  schedule::Prediction predicted;  // with exact costs
  double longest_path_seconds = 0;
  schedule::Schedule schedule;  // that was followed; on demand: with unlimited budgets
  schedule::Trace trace;
  std::vector<schedule::ParameterSize> sizes;

  std::int64_t arena_bytes() const { return schedule.gather_arena + schedule.reduce_arena + schedule.scratch; }
};

// Runs degrees.ranks() threads. Errors: as those of the steps, Runtime and run_local.
ScheduleTimes measure_schedule(const ScheduleRun& run);

// As RuntimeOptions has them.
struct Budgets {
  std::string name;
  std::optional<std::int64_t> gather, reduce;
};
// "minimum", "2 x minimum", "chosen" (absent) and "unlimited", for the program that was measured.
std::vector<Budgets> budgets_of(const ScheduleTimes& times);

}  // namespace tessera::bench
