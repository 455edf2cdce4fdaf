// Tests a step in two halves: it is enqueued, and finished while the next step is already pending.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <string>

#include "tessera/base/error.h"
#include "tests/ops/allocator_settings.h"
#include "tests/train/momentum_sgd.h"
#include "tests/train/training.h"

namespace tessera::train {
namespace {

using ops::test::AllocatorSettings;
using testing::odd_model;
using testing::run;
using testing::RunOptions;
using testing::RunResult;

class PendingSteps : public ::testing::TestWithParam<base::DeviceKind> {
 protected:
  void SetUp() override {
    if (on_gpu() && base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
  static bool on_gpu() { return GetParam() == base::DeviceKind::cuda; }
  // The rates differ, so that a step with another step's rate is detected.
  static RunOptions options() {
    return {
        .model = odd_model(), .gtp = on_gpu() ? 1 : 2, .blocks = 4, .steps = 6, .on_gpu = on_gpu(), .lr_growth = 3e-3};
  }
};

TEST_P(PendingSteps, GiveTheBitsOfWholeStepsInOrder) {
  RunOptions options = this->options();
  const RunResult expected = run(options);
  EXPECT_EQ(expected.updates, options.steps);
  EXPECT_EQ(expected.skipped, std::vector<bool>(6, false));
  EXPECT_NE(expected.losses[0], expected.losses[1]);
  for (int ahead = 0; ahead < Trainer::kMaxPending; ++ahead) {
    options.ahead = ahead;
    EXPECT_TRUE(run(options) == expected) << ahead << " pending";
  }
}

// The skipped step's amaxes do not affect the scales of later steps.
TEST_P(PendingSteps, ASkippedStepDoesNotChangeTheHistory) {
  for (const std::set<int>& bad : {std::set<int>{0}, {2}, {1, 2}}) {
    RunOptions options = this->options();
    options.dtype = quant::DType::bf16;
    options.products = quant::Format::fp8;
    options.left_out = bad;
    const RunResult expected = run(options);
    options.left_out.clear();
    options.spoiled = bad;
    const RunResult got = run(options);
    EXPECT_EQ(got.tensors, expected.tensors) << *bad.begin();
    EXPECT_EQ(got.updates, expected.updates);
  }
}

// The host enqueues updates on a GPU before it knows whether earlier updates apply.
TEST_P(PendingSteps, LaterStepsDoNotCountASkippedStepAsUpdate) {
  for (const std::set<int>& bad : {std::set<int>{0}, {2}, {1, 2}, {0, 3, 4}}) {
    RunOptions options = this->options();
    options.left_out = bad;
    const RunResult expected = run(options);
    const auto applied = options.steps - static_cast<int>(bad.size());
    EXPECT_EQ(expected.updates, applied);
    options.left_out.clear();
    options.spoiled = bad;
    for (const std::optional<int> ahead : {std::optional<int>(), {0}, {1}, {Trainer::kMaxPending - 1}}) {
      options.ahead = ahead;
      const RunResult result = run(options);
      EXPECT_EQ(result.updates, applied);
      for (int step = 0; step < options.steps; ++step)
        EXPECT_EQ(result.skipped[static_cast<std::size_t>(step)], bad.contains(step)) << "step " << step;
      EXPECT_TRUE(result.tensors == expected.tensors) << ahead.value_or(-1) << " pending";
    }
  }
}

void expect_same_values(const std::vector<double>& values, const std::vector<double>& expected, const char* what) {
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_TRUE(values[i] == expected[i] || (std::isnan(values[i]) && std::isnan(expected[i])))
        << what << " of step " << i << ": got " << values[i] << ", expected " << expected[i];
}
void expect_same(const RunResult& result, const RunResult& expected) {
  expect_same_values(result.losses, expected.losses, "loss");
  expect_same_values(result.norms, expected.norms, "norm");
  EXPECT_EQ(result.skipped, expected.skipped);
  EXPECT_EQ(result.updates, expected.updates);
  EXPECT_TRUE(result.scales == expected.scales);
  for (const auto& [name, values] : expected.tensors) EXPECT_TRUE(result.tensors.at(name) == values) << name;
}

// When a step is finished, the maximum number of later steps is enqueued. With delayed scaling, the host waits for the
// first step.
std::vector<std::pair<int, int>> attempts_of(const RunOptions& options) {
  std::vector<std::pair<int, int>> attempts;
  for (const auto& [step, times] : options.suppressed) {
    const bool is_alone = step == 0 && options.products == quant::Format::fp8;
    const int behind = is_alone ? 0 : std::min(options.ahead.value_or(0), options.steps - 1 - step);
    attempts.insert(attempts.end(), static_cast<std::size_t>(times), {step, behind});
  }
  return attempts;
}

std::string trace_of(const RunOptions& options) {
  std::string text = options.zero ? "zero" : "whole states";
  for (const auto& [step, times] : options.suppressed)
    text += ", step " + std::to_string(step) + " " + std::to_string(times) + " times";
  return text + ", " + std::to_string(options.ahead.value_or(0)) + " pending";
}

// Runs with the largest number of pending steps that a training loop may have.
void expect_same_however_many_are_pending(RunOptions options, const RunResult& expected) {
  for (int ahead = 0; ahead < Trainer::kMaxPending; ++ahead) {
    options.ahead = ahead;
    SCOPED_TRACE(trace_of(options));
    const RunResult result = run(options);
    EXPECT_EQ(result.suppressed, attempts_of(options));
    expect_same(result, expected);
  }
}

// A suppressed step has no effect, for any number of pending steps. Steps that were enqueued before the host read the
// decision have no effect either.
TEST_P(PendingSteps, RepeatedSuppressedStepsGiveTheBitsOfARunWithoutSuppression) {
  RunOptions options = this->options();
  if (!on_gpu()) options.dp = 2;
  for (const bool zero : {false, true}) {
    options.zero = zero;
    options.suppressed.clear();
    options.ahead.reset();
    const RunResult expected = run(options);
    for (const std::map<int, int>& suppressed :
         {std::map<int, int>{{0, 1}}, {{2, 1}}, {{3, 1}}, {{2, 1}, {3, 1}}, {{2, 2}}, {{0, 2}, {1, 1}, {5, 3}}}) {
      if (zero && suppressed.size() == 1) continue;  // the other checks contain these members
      options.suppressed = suppressed;
      expect_same_however_many_are_pending(options, expected);
    }
  }
}

// The compared state includes the history of delayed scaling.
TEST_P(PendingSteps, SuppressedStepsDoNotChangeTheHistory) {
  RunOptions options = this->options();
  options.dtype = quant::DType::bf16;
  options.products = quant::Format::fp8;
  const RunResult expected = run(options);
  EXPECT_FALSE(expected.scales.empty());
  for (const std::map<int, int>& suppressed : {std::map<int, int>{{0, 2}}, {{2, 1}, {3, 1}}, {{5, 1}}}) {
    options.suppressed = suppressed;
    expect_same_however_many_are_pending(options, expected);
  }
}

// A skipped step between suppressed steps stays skipped.
TEST_P(PendingSteps, SuppressedAndSkippedStepsMayMix) {
  RunOptions options = this->options();
  options.spoiled = {1, 3};
  options.ahead = 1;
  const RunResult expected = run(options);
  EXPECT_EQ(expected.updates, options.steps - 2);
  for (const std::map<int, int>& suppressed : {std::map<int, int>{{1, 1}}, {{2, 1}}, {{2, 1}, {3, 2}, {4, 1}}}) {
    options.suppressed = suppressed;
    SCOPED_TRACE(trace_of(options));
    const RunResult result = run(options);
    EXPECT_EQ(result.suppressed, attempts_of(options));
    expect_same(result, expected);
  }
}

TEST_P(PendingSteps, AreLimitedInNumber) {
  RunOptions options = this->options();
  options.ahead = Trainer::kMaxPending - 1;
  options.before_step = [&](Trainer& trainer, int step) {
    EXPECT_EQ(trainer.pending_steps(), std::min(step, Trainer::kMaxPending - 1));
    if (step == 0) {
      EXPECT_THROW(trainer.finish_step(), Error);
    } else {
      EXPECT_THROW(trainer.train_step({}, 0), Error);
    }
  };
  options.after_step = [&](Trainer& trainer, int) {
    if (trainer.pending_steps() == Trainer::kMaxPending) {
      EXPECT_THROW(trainer.enqueue_step({}, 0), Error);
    }
  };
  EXPECT_EQ(run(options).losses.size(), 6u);
}

// Steps that follow their schedule are enqueued, and the previous step is finished, while the device is blocked.
TEST(PendingStepsOnGpu, AreEnqueuedWhileTheDeviceIsBlocked) {
  if (base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  constexpr double still = 2;  // seconds for which the device is blocked
  constexpr int stood_at = 4;  // the step before which the device is blocked
  std::chrono::steady_clock::time_point begin;
  RunOptions options{.model = odd_model(), .blocks = 1, .steps = stood_at + 2, .on_gpu = true, .ahead = 1};
  options.before_step = [&](Trainer& trainer, int step) {
    if (step != stood_at) return;
    begin = std::chrono::steady_clock::now();
    trainer.parallel().compute->delay(still);
  };
  options.after_step = [&](Trainer& trainer, int step) {
    if (step < stood_at) return;
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(taken.count(), still / 2) << "step " << step;
    EXPECT_EQ(trainer.pending_steps(), 2);
  };
  EXPECT_EQ(run(options).losses.size(), 6u);
}

// The first two steps are recorded. One rank has nothing to gather, so the other steps are launches.
TEST(GraphSteps, GiveTheBitsOfStepsWithoutAGraph) {
  if (base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (const quant::DType dtype : {quant::DType::fp32, quant::DType::bf16, quant::DType::fp64}) {
    RunOptions options{
        .model = odd_model(), .dtype = dtype, .blocks = 3, .steps = 8, .on_gpu = true, .lr_growth = 3e-3};
    if (dtype == quant::DType::fp64) options.rule = testing::momentum_sgd();
    options.spoiled = {5};
    const RunResult expected = run(options);
    options.graph = true;
    for (const std::optional<int> ahead : {std::optional<int>(), {1}, {Trainer::kMaxPending - 1}}) {
      options.ahead = ahead;
      const RunResult result = run(options);
      expect_same(result, expected);
      EXPECT_EQ(result.graph_steps, options.steps - 2) << ahead.value_or(-1) << " pending";
    }
  }
}

TEST(GraphSteps, AreRepeatedIfSuppressed) {
  if (base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  for (const quant::Format products : {quant::Format::bf16, quant::Format::fp8}) {
    RunOptions options{.model = odd_model(),
                       .dtype = quant::DType::bf16,
                       .blocks = 3,
                       .steps = 9,
                       .on_gpu = true,
                       .products = products,
                       .lr_growth = 3e-3};
    const RunResult expected = run(options);
    options.graph = true;
    options.ahead = Trainer::kMaxPending - 1;
    for (const std::map<int, int>& suppressed :
         {std::map<int, int>{{0, 1}}, {{4, 1}}, {{5, 1}}, {{4, 1}, {5, 1}}, {{5, 2}, {8, 1}}}) {
      options.suppressed = suppressed;
      SCOPED_TRACE(trace_of(options));
      const RunResult result = run(options);
      expect_same(result, expected);
      EXPECT_EQ(result.suppressed, attempts_of(options));
      EXPECT_GE(result.graph_steps, options.steps - 3);
    }
  }
}

// libtorch returns a trainer's cached tensor memory by waiting for that trainer's streams, which the next trainer then
// uses.
TEST(GraphSteps, FollowAnotherTrainerWithExpandableSegments) {
  if (base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  const AllocatorSettings settings("expandable_segments:True");
  RunOptions options{.model = odd_model(), .blocks = 2, .steps = 5, .on_gpu = true};
  const RunResult expected = run(options);
  options.graph = true;
  expect_same(run(options), expected);
  expect_same(run(options), expected);
}

// An evaluation makes its own schedule, so another graph is captured. Other weights are at the addresses that the graph
// reads.
TEST(GraphSteps, ContinueAfterOtherWork) {
  if (base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  RunOptions options{.model = odd_model(), .blocks = 2, .steps = 9, .on_gpu = true, .evaluated = {4}};
  options.before_step = [](Trainer& trainer, int step) {
    if (step == 6) set_initial_values(trainer.runtime(), 11);
  };
  const RunResult expected = run(options);
  options.graph = true;
  const RunResult result = run(options);
  expect_same(result, expected);
  EXPECT_EQ(result.graph_steps, 9 - 2);
}

INSTANTIATE_TEST_SUITE_P(Devices, PendingSteps, ::testing::Values(base::DeviceKind::cpu, base::DeviceKind::cuda),
                         [](const auto& info) { return info.param == base::DeviceKind::cpu ? "cpu" : "cuda"; });

}  // namespace
}  // namespace tessera::train
