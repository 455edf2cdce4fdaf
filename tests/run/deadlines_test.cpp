#include "tessera/run/deadlines.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace tessera::run {
namespace {

TEST(Deadlines, WithoutLimitsAreNeverDue) {
  const Deadlines none({}, {}, 0);
  EXPECT_FALSE(none.is_save_due(1e9) || none.is_stop_due(1e9));
}

TEST(Deadlines, ASaveIsDueAfterItsMinutes) {
  Deadlines deadlines(2, {}, 1000);
  EXPECT_FALSE(deadlines.is_save_due(1119));
  EXPECT_TRUE(deadlines.is_save_due(1120));
  deadlines.add_save(1150, 30);
  EXPECT_FALSE(deadlines.is_save_due(1269));
  EXPECT_TRUE(deadlines.is_save_due(1270));
  EXPECT_FALSE(deadlines.is_stop_due(1e9));
}

TEST(Deadlines, AStopLeavesTimeForTheSaveAndTheStepsBeforeIt) {
  Deadlines deadlines({}, 10, 5);
  EXPECT_FALSE(deadlines.is_stop_due(599));
  EXPECT_TRUE(deadlines.is_stop_due(600));
  deadlines.add_step(20);
  EXPECT_FALSE(deadlines.is_stop_due(519));
  EXPECT_TRUE(deadlines.is_stop_due(520));
  EXPECT_FALSE(deadlines.is_save_due(299));
  EXPECT_TRUE(deadlines.is_save_due(300)) << "no save is measured";
  deadlines.add_save(310, 100);
  EXPECT_FALSE(deadlines.is_save_due(419));
  EXPECT_FALSE(deadlines.is_stop_due(419));
  EXPECT_TRUE(deadlines.is_stop_due(420));
}

TEST(Deadlines, CountFromTheStartOfTheProcess) {
  const double before = process_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const double passed = process_seconds() - before;
  EXPECT_GE(passed, 0.05);
  EXPECT_GT(before, 0);
  EXPECT_LT(before, 24 * 3600);
}

}  // namespace
}  // namespace tessera::run
