// Steps and evaluations with more rows of experts than the memory holds. CPUs have memory for all rows, so a hook of
// the model raises the counters as GPUs do.
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tests/train/training.h"

namespace tessera::train::testing {
namespace {

RunOptions run_with_room(double room) {
  return {.model = sparse_model(), .gtp = 2, .experts = nn::ExpertDegrees{.ep = 2}, .blocks = 4, .expert_room = room};
}

// A hook for which every forward pass needs 1.2 times the memory, up to `most` times the even load.
std::function<void(const nn::ExpertRoom&)> needs_up_to(double most) {
  return [most](const nn::ExpertRoom& room) {
    if (room.factor >= most) return;
    ++*(at::GradMode::is_enabled() ? room.stop : room.evaluation);  // evaluations compute no gradients
    *room.needed = std::max(*room.needed, 1.2 * room.factor);
  };
}

TEST(ExpertRoom, GrowsUntilTheStepFits) {
  RunOptions options = run_with_room(1);
  const RunResult expected = run(options);
  EXPECT_TRUE(expected.suppressed.empty());
  std::vector<double> rooms;
  options.before_forward = needs_up_to(3);
  options.before_step = [&](Trainer& trainer, int) {
    if (trainer.parallel().rank == 0) rooms.push_back(trainer.expert_room());
  };
  const RunResult found = run(options);
  // 1.1 times the need is allocated: 1.32, 1.74, 2.30, 3.04.
  EXPECT_EQ(found.suppressed, (std::vector<std::pair<int, int>>(4, {0, 0})));
  ASSERT_EQ(rooms.size(), 7U);
  for (std::size_t i = 0; i < rooms.size(); ++i)
    EXPECT_NEAR(rooms[i], std::pow(1.32, static_cast<double>(std::min<std::size_t>(i, 4))), 1e-9);
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.tensors, expected.tensors);
}

TEST(ExpertRoom, IsEnoughForEvaluationsAfterSomeAttempts) {
  RunOptions options = run_with_room(1);
  const RunResult expected = run(options);
  options.evaluated = {0, 2};
  options.before_forward = needs_up_to(3);
  const RunResult found = run(options);
  EXPECT_TRUE(found.suppressed.empty());  // the evaluation before the first step has increased the memory
  EXPECT_EQ(found.tensors, expected.tensors);
}

TEST(ExpertRoom, AnEvaluationThatNeverFitsFails) {
  RunOptions options = run_with_room(1);
  options.evaluated = {0};
  options.before_forward = needs_up_to(std::numeric_limits<double>::infinity());
  EXPECT_THAT(
      [&] { run(options); },
      ::testing::ThrowsMessage<Error>(::testing::HasSubstr(
          "evaluation: too many rows of experts in 10 attempts in a row, with room for 12.2 times the even load")));
}

}  // namespace
}  // namespace tessera::train::testing
