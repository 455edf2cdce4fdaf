// Timed steps in the runtime between ranks of `local`, compared with the simulator's prediction for the same schedule.
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
  nn::MeshDegrees degrees{.gtp = 2};
  int microbatches = 1;
  comm::Link link;
  runtime::RuntimeOptions options;
  // True: the program and the link sleep; false: time is virtual, and every run gives the same result.
  bool real = false;
};

struct ScheduleTimes {
  // The time from the start of a step to the start of the next step, on the slowest rank. With `real`, the mean over
  // several steps.
  double step_seconds = 0, exposed_seconds = 0;
  schedule::Prediction predicted;  // computed from exact costs
  double longest_path_seconds = 0;
  // The schedule that the steps followed; for steps on demand: the schedule with unlimited budgets.
  schedule::Schedule schedule;
  schedule::Trace trace;
  std::vector<schedule::ParameterSize> sizes;

  std::int64_t arena_bytes() const { return schedule.gather_arena + schedule.reduce_arena + schedule.scratch; }
};

// Runs degrees.places() threads. Throws the errors of the steps, of Runtime and of run_local.
ScheduleTimes measure_schedule(const ScheduleRun& run);

// The budgets of a run and their name. The members have the meaning of those in RuntimeOptions.
struct Budgets {
  std::string name;
  std::optional<std::int64_t> gather, reduce;
};
// Returns the budgets "minimum", "2 x minimum", "chosen" and "unlimited" of the measured program. The values of
// "chosen" are nullopt, so that the runtime chooses them.
std::vector<Budgets> budgets_of(const ScheduleTimes& times);

}  // namespace tessera::bench
