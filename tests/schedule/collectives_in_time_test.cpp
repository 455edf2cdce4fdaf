// Collectives of the program overlap with the compute between their issue and their wait.
#include "tessera/schedule/collectives_in_time.h"

#include <gtest/gtest.h>

#include <algorithm>

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

// The gather of T tokens of H numbers of 2 bytes in pieces over t ranks takes c seconds at 370 GB/s. Its product, of W
// columns over all ranks, takes g seconds at 690 TFLOP/s. The own tokens are multiplied first, and each other chunk
// when its piece has arrived. Everything is hidden if c / g is at most (t - 1) / t, that is, if W is at least 1865 t.
TEST(CollectivesInTime, PiecesAreHiddenBehindTheProductsOfTheChunksThatArrived) {
  constexpr double kTokens = 8192, kHidden = 4096, kLink = 370e9, kProducts = 690e12;
  for (const int ranks : {2, 3, 4, 8})
    for (const double width : {0.4 * 1865 * ranks, 0.99 * 1865 * ranks, 1.01 * 1865 * ranks, 3.0 * 1865 * ranks}) {
      const double c = (ranks - 1.0) / ranks * kTokens * kHidden * 2 / kLink;
      const double g = 2 * kTokens * kHidden * width / ranks / kProducts;
      Trace trace;
      const auto add = [&](EventKind kind, int piece) {
        trace.push_back({.kind = kind, .microbatch = 0, .group = "tp", .op = piece_op("gather", piece)});
      };
      Costs costs;
      for (int piece = 1; piece < ranks; ++piece) add(EventKind::comm, piece);
      for (int piece = 1; piece < ranks; ++piece) add(EventKind::need, piece);
      trace.push_back({.kind = EventKind::stash, .microbatch = 0, .op = "keep"});  // after the last product
      for (std::size_t i = 0; i < trace.size(); ++i) {
        const bool is_piece = trace[i].kind == EventKind::comm;
        costs.segment_seconds.push_back(is_piece ? 0 : g / ranks);
        costs.comm_seconds.push_back(is_piece ? c / (ranks - 1) : 0);
        costs.comm_waits.push_back(static_cast<int>(is_piece ? i + static_cast<std::size_t>(ranks) - 1 : i));
      }
      const double exposed = std::max(0.0, c + g / ranks - g);
      EXPECT_EQ(exposed > 0, width < 1865 * ranks);
      const auto predicted = simulate(trace, plan(trace, {}, {}), costs);
      EXPECT_NEAR(predicted.step_seconds, g + exposed, 1e-9) << ranks << " ranks, width " << width;
      EXPECT_NEAR(predicted.comm_exposed_seconds, exposed, 1e-9) << ranks << " ranks, width " << width;
    }
}

}  // namespace
}  // namespace tessera::schedule
