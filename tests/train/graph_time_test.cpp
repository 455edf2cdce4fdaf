#include "tessera/train/graph_time.h"

#include <gtest/gtest.h>

namespace tessera::train {
namespace {

TEST(GraphTime, IsTheLongestStepUntilALaunchOfTheGraphHasEnded) {
  GraphTime time;
  EXPECT_EQ(0, time.seconds());
  time.add(3, 0);  // the first step loads kernels
  time.add(1, 0);
  EXPECT_EQ(3, time.seconds());
  EXPECT_EQ(0, time.graph());
  time.captured();
  EXPECT_EQ(1, time.graph());
  EXPECT_EQ(3, time.seconds());
}

TEST(GraphTime, IsTheShortestLaunchOfTheNewestGraph) {
  GraphTime time;
  time.add(3, 0);
  time.captured();
  time.add(2, 1);  // contains the capture
  EXPECT_EQ(2, time.seconds());
  time.add(0.5, 1);
  time.add(0.6, 1);
  time.add(0.1, 0);  // a shorter step without a graph
  EXPECT_EQ(0.5, time.seconds());
}

TEST(GraphTime, ForgetsLaunchesOfEarlierGraphs) {
  GraphTime time;
  time.captured();
  time.add(0.5, 1);
  time.add(4, 0);
  time.captured();  // for a longer step
  EXPECT_EQ(4, time.seconds());
  time.add(0.5, 1);  // was pending during the capture
  EXPECT_EQ(4, time.seconds());
  time.add(5, 2);
  EXPECT_EQ(5, time.seconds());
}

}  // namespace
}  // namespace tessera::train
