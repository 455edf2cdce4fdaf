// The predicted time of columnwise copies.
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/schedule/plan/plan.h"
#include "tessera/schedule/simulate.h"
#include "tests/schedule/oracle_cases.h"

namespace tessera::schedule {
namespace {

// Weights stay in place, and only copies take time: that of layer i takes i + 1 seconds.
TEST(SimulateCopies, ComputeMakesEachCopyOfTheScheduleOnce) {
  constexpr int layers = 3, microbatches = 4;
  oracle::Case made = oracle::mirrored_layers(layers, microbatches, {kArenaAlignment});
  for (ParameterSize& size : made.sizes) {
    size.gathered = 0;
    size.columnwise = kArenaAlignment;
  }
  for (const std::int64_t budget : {kMinimum, kUnlimited}) {
    const Schedule schedule = plan(made.trace, made.sizes, {.gather_budget = budget});
    const Costs costs{.copy_seconds = {1, 2, 3}};
    const double expected = budget == kUnlimited ? 6 : 6 * microbatches;
    const Prediction prediction = simulate(made.trace, schedule, costs);
    EXPECT_EQ(prediction.step_seconds, expected);
    EXPECT_EQ(prediction.compute_seconds, expected);
    EXPECT_EQ(prediction.exposed_seconds(), 0);
    EXPECT_EQ(std::ranges::count(prediction.spans, true, &Span::is_copy), static_cast<int>(schedule.copies.size()));
    for (const Span& span : prediction.spans)
      if (span.is_copy)
        EXPECT_EQ(span.end - span.begin, 1 + schedule.copies[static_cast<std::size_t>(span.index)].unit);
    const Prediction on_demand = simulate_on_demand(made.trace, schedule, costs);
    EXPECT_EQ(on_demand.step_seconds, 6 * microbatches);
  }
}

}  // namespace
}  // namespace tessera::schedule
