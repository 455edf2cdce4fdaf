// Checks that a step's time is that of compute, independent of when the host reads it.
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/train/training.h"

namespace tessera::train {
namespace {

using testing::odd_model;
using testing::run;
using testing::RunOptions;
using Clock = std::chrono::steady_clock;

constexpr double kDelay = 0.1;  // seconds for which compute is blocked before a step
constexpr double kIdle = 0.5;   // seconds that the host pauses between two steps

struct Device {
  bool is_gpu = false, graph = false;
};

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class StepTimes : public ::testing::TestWithParam<Device> {
 protected:
  void SetUp() override {
    if (GetParam().is_gpu && base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
  // Graphs begin with the third step.
  static RunOptions options() {
    return {.model = odd_model(),
            .gtp = GetParam().is_gpu ? 1 : 2,
            .blocks = 2,
            .steps = 8,
            .on_gpu = GetParam().is_gpu,
            .graph = GetParam().graph};
  }
};

// The host finishes the last two steps immediately one after the other.
TEST_P(StepTimes, ArePositiveAndAddUpToTheElapsedTime) {
  RunOptions options = this->options();
  for (const int ahead : {1, Trainer::kMaxPending - 1}) {
    SCOPED_TRACE(::testing::Message() << ahead << " pending");
    options.ahead = ahead;
    Clock::time_point begin;
    std::vector<double> seconds;
    double elapsed = 0;
    options.before_step = [&](Trainer& trainer, int step) {
      if (step > 0) trainer.parallel().compute->delay(kDelay);
      if (step == 0 && trainer.parallel().rank == 0) begin = Clock::now();
    };
    options.on_result = [&](const StepResult& result) {
      seconds.push_back(result.seconds);
      elapsed = seconds_since(begin);
    };
    run(options);
    ASSERT_EQ(seconds.size(), 8u);
    EXPECT_GT(seconds[0], 0);
    for (std::size_t step = 1; step < seconds.size(); ++step)
      EXPECT_GE(seconds[step], 0.99 * kDelay) << "step " << step;
    const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
    EXPECT_LE(sum, 1.01 * elapsed);
    EXPECT_GE(sum, 0.8 * elapsed);
  }
}

TEST_P(StepTimes, BeginWithTheStepIfNoStepIsPending) {
  RunOptions options = this->options();
  options.before_step = [](Trainer&, int) { std::this_thread::sleep_for(std::chrono::duration<double>(kIdle)); };
  std::vector<double> seconds;
  options.on_result = [&](const StepResult& result) { seconds.push_back(result.seconds); };
  options.steps = 5;
  run(options);
  ASSERT_EQ(seconds.size(), 5u);
  for (std::size_t step = 0; step < seconds.size(); ++step) EXPECT_GT(seconds[step], 0) << "step " << step;
  for (std::size_t step = 3; step < seconds.size(); ++step) EXPECT_LT(seconds[step], kIdle) << "step " << step;
}

// Step 4 is attempted three times; compute is blocked before each attempt.
TEST_P(StepTimes, ContainSuppressedAttempts) {
  RunOptions options = this->options();
  options.suppressed = {{4, 2}};
  for (const std::optional<int> ahead : {std::optional<int>(), {1}, {Trainer::kMaxPending - 1}}) {
    SCOPED_TRACE(::testing::Message() << ahead.value_or(-1) << " pending");
    options.ahead = ahead;
    options.before_step = [&](Trainer& trainer, int step) {
      if (step == 4) trainer.parallel().compute->delay(kDelay);
    };
    std::vector<double> seconds;
    options.on_result = [&](const StepResult& result) {
      if (!result.suppressed) seconds.push_back(result.seconds);
    };
    run(options);
    ASSERT_EQ(seconds.size(), 8u);
    for (std::size_t step = 0; step < seconds.size(); ++step) EXPECT_GT(seconds[step], 0) << "step " << step;
    // If no step is pending, the time of the first attempt starts after its delay.
    EXPECT_GE(seconds[4], 0.99 * (ahead ? 3 : 2) * kDelay);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, StepTimes, ::testing::Values(Device{}, Device{true}, Device{true, true}),
                         [](const auto& info) -> std::string {
                           if (!info.param.is_gpu) return "cpu";
                           return info.param.graph ? "cuda_graph" : "cuda";
                         });

}  // namespace
}  // namespace tessera::train
