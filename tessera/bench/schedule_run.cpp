#include "tessera/bench/schedule_run.h"

#include <algorithm>
#include <mutex>

#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"
#include "tessera/shard/host_time.h"

namespace tessera::bench {
namespace {

constexpr int kWarmUp = 2;  // the recorded step, and the first scheduled step, for which no weight is prefetched
constexpr int kRealSteps = 3;

// The measurements of one rank.
struct Seen {
  double step_seconds = 0, exposed_seconds = 0;
  std::vector<double> segments;
  std::vector<int> comm_waits;
};

Seen measure_steps(TimedSteps& program, const shard::ParallelGroups& parallel, const ScheduleRun& run) {
  for (int i = 0; i < kWarmUp; ++i) program.step(run.microbatches);
  const int steps = run.real ? kRealSteps : 1;
  const double begin = shard::host_seconds(parallel);
  Seen seen;
  for (int i = 0; i < steps; ++i) {
    program.step(run.microbatches);
    seen.exposed_seconds += program.runtime().statistics().exposed_seconds / steps;
  }
  seen.step_seconds = (shard::host_seconds(parallel) - begin) / steps;
  seen.segments = program.segments();
  seen.comm_waits = program.comm_waits();
  return seen;
}

}  // namespace

ScheduleTimes measure_schedule(const ScheduleRun& run) {
  ScheduleTimes times;
  Seen first;
  std::mutex mutex;
  comm::LocalOptions options;
  options.link = run.link;
  options.virtual_clock = !run.real;
  comm::run_local(static_cast<int>(run.degrees.places()), options, [&](comm::World& world) {
    shard::ParallelGroups parallel =
        shard::make_parallel_groups(world, nn::rank_layout(run.degrees), /*with_casts=*/true);
    const std::unique_ptr<TimedSteps> program = run.steps(parallel, run.options);
    Seen seen = measure_steps(*program, parallel, run);
    std::lock_guard lock(mutex);
    times.step_seconds = std::max(times.step_seconds, seen.step_seconds);
    times.exposed_seconds = std::max(times.exposed_seconds, seen.exposed_seconds);
    if (world.rank() != 0) return;
    times.trace = program->runtime().trace();
    times.sizes = program->runtime().parameters().sizes();
    first = std::move(seen);
    if (!run.options.scheduled) return;
    const schedule::Schedule* schedule = program->runtime().schedule(schedule::StepKind::train, run.microbatches);
    TESSERA_CHECK(schedule && !program->runtime().statistics().departed, "a timed step departed from its schedule");
    times.schedule = *schedule;
  });
  if (!run.options.scheduled) times.schedule = schedule::plan(times.trace, times.sizes, {});
  const auto costs = [&](bool on_demand) {
    schedule::Costs exact =
        exact_costs(run.link, run.degrees, times.trace, times.sizes, times.schedule, first.segments, on_demand);
    exact.comm_waits = first.comm_waits;
    return exact;
  };
  times.predicted = run.options.scheduled ? schedule::simulate(times.trace, times.schedule, costs(false))
                                          : schedule::simulate_on_demand(times.trace, times.schedule, costs(true));
  times.longest_path_seconds = longest_path(times.trace, times.schedule, costs(false));
  return times;
}

std::vector<Budgets> budgets_of(const ScheduleTimes& times) {
  const schedule::Schedule least = schedule::plan(
      times.trace, times.sizes, {.gather_budget = schedule::kMinimum, .reduce_budget = schedule::kMinimum});
  return {{"minimum", schedule::kMinimum, schedule::kMinimum},
          {"2 x minimum", 2 * least.gather_arena, 2 * (least.reduce_arena + least.scratch)},
          {"chosen", {}, {}},
          {"unlimited", schedule::kUnlimited, schedule::kUnlimited}};
}

}  // namespace tessera::bench
