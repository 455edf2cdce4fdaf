#include "tessera/run/pauses.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::run {
namespace {
using ::testing::HasSubstr;

TEST(Pauses, CountTheRemainingEvaluationsAndSavesByTheirMeasuredTime) {
  Pauses pauses({.last_step = 100, .eval_every = 10, .save_every = 30, .eval_samples = 50, .sets = {200, 20}});
  EXPECT_EQ(pauses.left(1), 0);
  EXPECT_EQ(pauses.samples_after(10), 70);
  EXPECT_EQ(pauses.samples_after(100), 220);
  pauses.add_save(3);
  EXPECT_EQ(pauses.left(31), 3 * 3);  // after the steps 60, 90 and 100
  EXPECT_EQ(pauses.left(100), 3);
  pauses.add_evaluation(10, 7);
  EXPECT_DOUBLE_EQ(pauses.left(90), 7 + 22 + 2 * 3);
  EXPECT_DOUBLE_EQ(pauses.left(91), 22 + 3);
  EXPECT_DOUBLE_EQ(pauses.left(0), 9 * 7 + 22 + 4 * 3);
}

TEST(Pauses, WithoutHeldOutDataAreSaves) {
  Pauses pauses({.last_step = 10, .eval_every = 1, .save_every = 0});
  pauses.add_save(2);
  EXPECT_EQ(pauses.left(5), 2);
}

TEST(Pauses, AdviseOnceAfterALongEvaluation) {
  Pauses pauses({.last_step = 100, .eval_every = 10, .sets = {1000, 10}});
  EXPECT_EQ(pauses.add_evaluation(0, 50), "") << "before the training";
  pauses.add_training(1000);
  EXPECT_EQ(pauses.add_evaluation(10, 100), "") << "10 %";
  pauses.add_training(60);
  pauses.add_training(40);
  // 2 s of 20.2 s are 100 of 1010 samples: 10 of the small set and 90 of the other.
  EXPECT_EQ(pauses.add_evaluation(20, 20.2),
            "the evaluation after step 20 took 20.2 s, 20 % of the training time before it; with --eval-samples 90 it "
            "would take about 2 %");
  pauses.add_training(1);
  EXPECT_EQ(pauses.add_evaluation(30, 20), "");
}

TEST(Pauses, AdviseAtLeastOneSampleAndNotAboutTheLastEvaluation) {
  Pauses pauses({.last_step = 10, .eval_every = 5, .sets = {100}});
  pauses.add_training(1);
  EXPECT_EQ(pauses.add_evaluation(10, 100), "");
  pauses.add_training(1);
  EXPECT_THAT(pauses.add_evaluation(5, 100), HasSubstr("--eval-samples 1 it"));
}

}  // namespace
}  // namespace tessera::run
