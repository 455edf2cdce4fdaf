// Checks that a step on the virtual clock takes the simulated time, up to the rounding of sums, for every link, budget
// and mesh. With enough memory, a step takes no longer than its longest chain of dependencies.
#include "tessera/bench/schedule_run.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tests/bench/synthetic.h"

namespace tessera::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kSumRounding = 1e-9;  // relative; sums of some thousand terms in another order

// No two layers are equal; no gtp degree divides the rows evenly.
SyntheticModel uneven_layers() {
  SyntheticModel model;
  for (int i = 0; i < 5; ++i)
    model.layers.push_back({.weight_bytes = 256 * (31 + 17 * i),
                            .forward_seconds = 0.001 * (1 + (i * 2) % 3),
                            .update_seconds = 0.0002 * (1 + i % 2)});
  return model;
}

double compute_of(const SyntheticModel& model, int microbatches) {
  double seconds = 0;
  for (const SyntheticLayer& layer : model.layers)
    seconds += 3 * microbatches * layer.forward_seconds + layer.update_seconds;
  return seconds;
}

// Returns links on which all whole weights take `share` times as long as the forward.
comm::Link link_of(const SyntheticModel& model, double share, double latency_s = 0) {
  double bytes = 0, forward = 0;
  for (const SyntheticLayer& layer : model.layers) {
    bytes += static_cast<double>(layer.weight_bytes);
    forward += layer.forward_seconds;
  }
  return {.latency_s = latency_s, .bytes_per_second = bytes / (share * forward)};
}

void expect_predicted(const ScheduleTimes& times) {
  const double rounding = kSumRounding * times.step_seconds;
  EXPECT_NEAR(times.exposed_seconds, times.predicted.exposed_seconds(), rounding);
  EXPECT_NEAR(times.step_seconds, times.predicted.step_seconds, rounding);
  EXPECT_GE(times.step_seconds, times.longest_path_seconds - rounding);
}

// Covers the program on demand and with every budget.
void expect_all_predicted(ScheduleRun run) {
  run.options.scheduled = false;
  const ScheduleTimes on_demand = measure_schedule(run);
  {
    SCOPED_TRACE("on demand");
    expect_predicted(on_demand);
  }
  run.options.scheduled = true;
  for (const Budgets& budget : budgets_of(on_demand)) {
    SCOPED_TRACE(budget.name);
    run.options.gather_budget = budget.gather;
    run.options.reduce_budget = budget.reduce;
    const ScheduleTimes times = measure_schedule(run);
    expect_predicted(times);
    EXPECT_LT(times.step_seconds, on_demand.step_seconds);
    if (budget.name.ends_with("minimum")) continue;
    // Chosen budgets may cost 1 % of the time on demand, since the choice treats latency as lower bandwidth.
    const double slack = budget.gather ? kSumRounding : 0.05;
    EXPECT_LE(times.step_seconds, (1 + slack) * times.longest_path_seconds);
  }
}

TEST(ScheduleRun, TakesThePredictedTime) {
  const SyntheticModel model = uneven_layers();
  for (const auto& [share, latency_s] : {std::pair(0.01, 0.0), {1.0, 0.0}, {2.5, 0.0}, {0.5, 0.0007}})
    for (const int microbatches : {1, 3})
      for (const int gtp : {2, 3}) {
        SCOPED_TRACE(
            fmt::format("share {}, latency {} s, {} microbatches, gtp {}", share, latency_s, microbatches, gtp));
        expect_all_predicted({.steps = steps_of(model),
                              .degrees = {.gtp = gtp},
                              .microbatches = microbatches,
                              .link = link_of(model, share, latency_s)});
      }
}

TEST(ScheduleRun, TakesThePredictedTimeWithReplicas) {
  SyntheticModel model = uneven_layers();
  model.layers[1].once = true;  // the sum over replicas of this layer comes last
  ScheduleRun run{
      .steps = steps_of(model), .degrees = {.gtp = 2, .dp = 2}, .microbatches = 2, .link = link_of(model, 0.8, 0.0001)};
  expect_all_predicted(run);
}

// New weights travel between replicas before they are gathered. With gtp 1, compute itself waits for them.
TEST(ScheduleRun, TakesThePredictedTimeWithShardedStates) {
  const SyntheticModel model = uneven_layers();
  for (const int gtp : {1, 2}) {
    SCOPED_TRACE(gtp);
    ScheduleRun run{.steps = steps_of(model),
                    .degrees = {.gtp = gtp, .dp = 2},
                    .microbatches = 2,
                    .link = link_of(model, 0.8, 0.0001)};
    run.options.zero = true;
    expect_all_predicted(run);
  }
}

TEST(ScheduleRun, TakesThePredictedTimeWithProgramCollectives) {
  SyntheticModel model = uneven_layers();
  model.activation_bytes = 10'000;
  for (const double share : {0.3, 2.0})
    expect_all_predicted(
        {.steps = steps_of(model), .degrees = {.tp = 2, .gtp = 2}, .microbatches = 2, .link = link_of(model, share)});
}

TEST(ScheduleRun, TakesThePredictedTimeWithATiedWeight) {
  SyntheticModel model = uneven_layers();
  model.tied = true;
  expect_all_predicted({.steps = steps_of(model), .microbatches = 2, .link = link_of(model, 1)});
}

TEST(ScheduleRun, TakesThePredictedTimeWithUnitsOfNeighbours) {
  const SyntheticModel model = uneven_layers();
  ScheduleRun run{.steps = steps_of(model), .microbatches = 2, .link = link_of(model, 0.5, 0.001)};
  run.options.coalesce_bytes = 64 << 10;
  const ScheduleTimes together = measure_schedule(run);
  ASSERT_LT(together.schedule.gather_units.size(), model.layers.size());
  expect_predicted(together);
}

// Without overlap, a step is the sum of the program's compute times and its transfer times.
TEST(ScheduleRun, OnDemandHasNoOverlap) {
  const SyntheticModel model = uneven_layers();
  ScheduleRun run{.steps = steps_of(model),
                  .microbatches = 3,
                  .link = link_of(model, 1)};  // without latency, seconds are proportional to bytes
  run.options.scheduled = false;
  const ScheduleTimes times = measure_schedule(run);
  double bytes = 8 + 3 * 8;  // bytes of the comparisons at the end of the step and of each microbatch
  for (const schedule::ParameterSize& size : times.sizes)
    bytes += 3 * static_cast<double>(2 * (total_bytes(size.gather) + 8) + total_bytes(size.reduce));
  EXPECT_NEAR(times.step_seconds, compute_of(model, 3) + bytes / run.link.bytes_per_second,
              kSumRounding * times.step_seconds);
}

// With a fast link, compute waits only for the last reduction.
TEST(ScheduleRun, HidesAFastLink) {
  const SyntheticModel model = uneven_layers();
  ScheduleRun run{.steps = steps_of(model), .microbatches = 3, .link = link_of(model, 0.01)};
  run.options.gather_budget = run.options.reduce_budget = schedule::kUnlimited;
  const ScheduleTimes times = measure_schedule(run);
  EXPECT_EQ(times.predicted.gather_exposed_seconds, 0);
  const double last = static_cast<double>(total_bytes(times.sizes.front().reduce)) / run.link.bytes_per_second;
  const double compared = 8 / run.link.bytes_per_second;  // the comparison at the end of the step
  EXPECT_NEAR(times.exposed_seconds, last + compared, kSumRounding * times.step_seconds);
}

TEST(ScheduleRun, GivesTheSameTimesInEveryRun) {
  const SyntheticModel model = uneven_layers();
  const ScheduleRun run{
      .steps = steps_of(model), .degrees = {.gtp = 3}, .microbatches = 2, .link = link_of(model, 1, 0.0003)};
  const ScheduleTimes once = measure_schedule(run), again = measure_schedule(run);
  EXPECT_EQ(once.step_seconds, again.step_seconds);
  EXPECT_EQ(once.exposed_seconds, again.exposed_seconds);
  EXPECT_EQ(once.schedule, again.schedule);
}

// A sleep may end late, never early, so only the time on demand has a lower bound that holds on every machine.
TEST(ScheduleRun, OnDemandRealTimeIsAtLeastThePrediction) {
  const SyntheticModel model = uneven_layers();
  ScheduleRun run{.steps = steps_of(model), .link = link_of(model, 2), .real = true};
  const ScheduleTimes scheduled = measure_schedule(run);
  run.options.scheduled = false;
  const ScheduleTimes on_demand = measure_schedule(run);
  EXPECT_GE(on_demand.step_seconds, on_demand.predicted.step_seconds);
  fmt::print("a step on demand: predicted {:.1f} ms, took {:.1f}; scheduled: predicted {:.1f} ms, took {:.1f}\n",
             1e3 * on_demand.predicted.step_seconds, 1e3 * on_demand.step_seconds,
             1e3 * scheduled.predicted.step_seconds, 1e3 * scheduled.step_seconds);
}

TEST(ScheduleRun, RefusesAnEmptyModel) {
  EXPECT_THAT([&] { measure_schedule({.steps = steps_of(SyntheticModel())}); },
              ThrowsMessage<InputError>(HasSubstr("a model without layers")));
  EXPECT_THAT([&] { measure_schedule({.steps = steps_of({.layers = {{.weight_bytes = 0}}})}); },
              ThrowsMessage<InputError>(HasSubstr("a layer of 0 bytes")));
}

}  // namespace
}  // namespace tessera::bench
