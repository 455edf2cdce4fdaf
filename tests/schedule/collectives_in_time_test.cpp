// Collectives of the program overlap with the compute between their issue and their wait.
#include "tessera/schedule/collectives_in_time.h"

#include <gtest/gtest.h>

#include "tessera/schedule/plan/plan.h"

namespace tessera::schedule {
namespace {

TEST(CollectivesInTime, AreWaitedForAtTheirEventByDefault) {
  const Costs costs{.comm_seconds = {3, 0, 2}};
  CollectivesInTime collectives(costs, 4);
  EXPECT_EQ(collectives.happened(0, 1), 4);
  EXPECT_EQ(collectives.happened(1, 5), 5);
  EXPECT_EQ(collectives.happened(2, 5), 7);
  EXPECT_EQ(collectives.happened(3, 8), 8);
}

TEST(CollectivesInTime, RunOneAtATimeAndAreWaitedForAfterTheGivenEvent) {
  const Costs costs{.comm_seconds = {3, 4, 0}, .comm_waits = {2, 2, 2}};
  CollectivesInTime collectives(costs, 3);
  EXPECT_EQ(collectives.happened(0, 1), 1);  // the collective runs until 4
  EXPECT_EQ(collectives.happened(1, 2), 2);  // the collective runs from 4 until 8
  EXPECT_EQ(collectives.happened(2, 3), 8);
  EXPECT_EQ(collectives.happened(0, 10), 10);  // the collective belongs to the next step
  EXPECT_EQ(collectives.happened(1, 11), 11);
  EXPECT_EQ(collectives.happened(2, 30), 30);
}

TEST(CollectivesInTime, AWaitBeforeTheCollectiveCountsAsAtItsEvent) {
  const Costs costs{.comm_seconds = {0, 4}, .comm_waits = {0, 0}};
  CollectivesInTime collectives(costs, 2);
  EXPECT_EQ(collectives.happened(0, 1), 1);
  EXPECT_EQ(collectives.happened(1, 2), 6);
}

// A collective is followed by one second of compute, which hides one second of the collective.
TEST(CollectivesInTime, AStepIsShorterByTheHiddenTime) {
  Trace trace;
  for (int ordinal = 0; ordinal < 2; ++ordinal)
    trace.push_back(
        {.kind = EventKind::comm, .microbatch = 0, .ordinal = ordinal, .group = "tp", .op = "all_reduce sum"});
  const Schedule schedule = plan(trace, {}, {});
  Costs costs{.segment_seconds = {0, 1}, .comm_seconds = {3, 0}};
  for (const bool on_demand : {false, true}) {
    const auto predict = [&] {
      return on_demand ? simulate_on_demand(trace, schedule, costs) : simulate(trace, schedule, costs);
    };
    costs.comm_waits.clear();
    EXPECT_DOUBLE_EQ(predict().step_seconds, 4);
    EXPECT_DOUBLE_EQ(predict().comm_exposed_seconds, 3);
    costs.comm_waits = {1, 1};
    EXPECT_DOUBLE_EQ(predict().step_seconds, 3);
    EXPECT_DOUBLE_EQ(predict().comm_exposed_seconds, 2);
  }
}

}  // namespace
}  // namespace tessera::schedule
