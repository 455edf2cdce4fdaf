#include "tessera/train/update/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

// Golden values from Python's fp64: 1e-5 + 0.5 * (1e-3 - 1e-5) * (1 + cos(pi * (s - 4) / 16)). In some libraries cos
// may differ by one unit in the last place, at most 1.2e-16. The rate then differs by less than 6e-20. At steps 5 to 12
// this is less than one unit in the last place of the rate, and EXPECT_DOUBLE_EQ allows four. The rate of step 19 is
// smaller, so this step has an absolute bound.
TEST(LearningRate, FollowsWarmUpAndCosine) {
  const LrSchedule schedule{.lr = 1e-3, .min_lr = 1e-5, .warmup_steps = 4, .schedule_steps = 20};
  EXPECT_EQ(learning_rate(schedule, 1), 1e-3 * 0.25);
  EXPECT_EQ(learning_rate(schedule, 2), 1e-3 * 0.5);
  EXPECT_EQ(learning_rate(schedule, 3), 1e-3 * 0.75);
  EXPECT_EQ(learning_rate(schedule, 4), 1e-3);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 5), 0.0009904887137995992);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 8), 0.000855017856687341);
  EXPECT_DOUBLE_EQ(learning_rate(schedule, 12), 0.000505);
  EXPECT_NEAR(learning_rate(schedule, 19), 1.9511286200400937e-05, 1e-19);
  EXPECT_EQ(learning_rate(schedule, 20), 1e-5);
  EXPECT_EQ(learning_rate(schedule, 1000000), 1e-5);
}

TEST(LearningRate, FallsFromTheFirstStepWithoutWarmUp) {
  const LrSchedule schedule{.lr = 3e-4, .schedule_steps = 100};
  double before = 3e-4;
  for (std::int64_t step = 1; step <= 100; ++step) {
    const double now = learning_rate(schedule, step);
    EXPECT_LT(now, before);
    EXPECT_GE(now, 0.0);
    before = now;
  }
  EXPECT_EQ(before, 0.0);
}

TEST(LearningRate, IsConstantAfterTheWarmUp) {
  const LrSchedule schedule{
      .lr = 0.5, .min_lr = 0.1, .warmup_steps = 2, .schedule_steps = 3, .shape = RateShape::constant};
  EXPECT_EQ(learning_rate(schedule, 1), 0.25);
  for (const std::int64_t step : {2, 3, 4, 1000}) EXPECT_EQ(learning_rate(schedule, step), 0.5);
}

TEST(LearningRate, WarmUpMayFillTheSchedule) {
  const LrSchedule schedule{.lr = 1.0, .min_lr = 0.1, .warmup_steps = 4, .schedule_steps = 4};
  EXPECT_EQ(learning_rate(schedule, 4), 1.0);
  EXPECT_EQ(learning_rate(schedule, 5), 0.1);
}

TEST(LearningRate, FallsLinearly) {
  const LrSchedule schedule{
      .lr = 1.0, .min_lr = 0.5, .warmup_steps = 2, .schedule_steps = 10, .shape = RateShape::linear};
  EXPECT_EQ(learning_rate(schedule, 1), 0.5);
  EXPECT_EQ(learning_rate(schedule, 2), 1.0);
  EXPECT_EQ(learning_rate(schedule, 4), 0.875);
  EXPECT_EQ(learning_rate(schedule, 9), 0.5625);
  EXPECT_EQ(learning_rate(schedule, 10), 0.5);
  EXPECT_EQ(learning_rate(schedule, 11), 0.5);
}

// Steps 17 to 20 are 1/4, 1/2, 3/4 and 1 of the decay.
TEST(LearningRate, IsStableUntilTheDecay) {
  LrSchedule schedule{
      .lr = 1.0, .min_lr = 0.5, .warmup_steps = 4, .schedule_steps = 20, .shape = RateShape::wsd, .decay_steps = 4};
  for (const auto& [shape, quarter, half] : {std::tuple{DecayShape::linear, 0.875, 0.75},
                                             {DecayShape::sqrt, 0.75, 0.5 + 0.5 * (1 - std::sqrt(0.5))},
                                             {DecayShape::cosine, 0.5 + 0.25 * (1 + std::sqrt(0.5)), 0.75}}) {
    schedule.decay_shape = shape;
    EXPECT_EQ(learning_rate(schedule, 2), 0.5);
    for (const std::int64_t step : {4, 5, 10, 16}) EXPECT_EQ(learning_rate(schedule, step), 1.0);
    EXPECT_DOUBLE_EQ(learning_rate(schedule, 17), quarter);
    EXPECT_DOUBLE_EQ(learning_rate(schedule, 18), half);
    for (const std::int64_t step : {20, 21, 1000}) EXPECT_EQ(learning_rate(schedule, step), 0.5);
  }
  schedule.decay_steps = 16;
  EXPECT_EQ(learning_rate(schedule, 4), 1.0);
  EXPECT_LT(learning_rate(schedule, 5), 1.0);
}

TEST(LearningRate, RefusesStepsBelowOneAndAnUnresolvedSchedule) {
  EXPECT_THROW(learning_rate({}, 0), Error);
  EXPECT_THROW(learning_rate({.schedule_steps = -1}, 1), Error);
}

}  // namespace
}  // namespace tessera::train
