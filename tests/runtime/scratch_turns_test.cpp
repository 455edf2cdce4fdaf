#include "tessera/runtime/scratch_turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace tessera::runtime {
namespace {

// Notes which fences it waits for.
class Listener final : public base::Lane {
 public:
  void run(std::function<void()> work) override { work(); }
  base::Fence record() override { return {}; }
  void wait(const base::Fence& fence) override { waited.push_back(fence.state()); }
  std::vector<const base::detail::FenceState*> waited;
};

TEST(ScratchTurns, TheNextLiesBehindTheLastAndWaitsWhereBytesAreTakenOver) {
  ScratchTurns turns;
  Listener lane;
  base::Promise a, b, c;
  EXPECT_EQ(turns.take(40, 100, lane), 0U);
  turns.give_back(a.fence());
  EXPECT_EQ(turns.take(40, 100, lane), 40U);
  turns.give_back(b.fence());
  EXPECT_TRUE(lane.waited.empty());
  EXPECT_EQ(turns.take(30, 100, lane), 0U);  // 20 are left at the end
  turns.give_back(c.fence());
  EXPECT_EQ(lane.waited, (std::vector{a.fence().state()}));
  EXPECT_EQ(turns.take(20, 100, lane), 30U);
  EXPECT_EQ(lane.waited, (std::vector{a.fence().state(), b.fence().state()}));
}

TEST(ScratchTurns, NothingTakesNoTurn) {
  ScratchTurns turns;
  Listener lane;
  base::Promise a, nobody;
  EXPECT_EQ(turns.take(100, 100, lane), 0U);
  turns.give_back(a.fence());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(turns.take(0, 100, lane), 0U);
    turns.give_back(nobody.fence());
  }
  EXPECT_TRUE(lane.waited.empty());
  turns.take(100, 100, lane);
  EXPECT_EQ(lane.waited, (std::vector{a.fence().state()}));
}

TEST(ScratchTurns, AGraphsEndCountsForAllBefore) {
  ScratchTurns turns;
  Listener lane;
  base::Promise before, graph;
  turns.take(60, 100, lane);
  turns.give_back(before.fence());
  turns.ends_with(graph.fence());
  turns.take(60, 100, lane);
  EXPECT_EQ(lane.waited, (std::vector{graph.fence().state()}));
}

TEST(ScratchTurns, AfterAResetNothingIsWaitedFor) {
  ScratchTurns turns;
  Listener lane;
  base::Promise before;
  turns.take(60, 100, lane);
  turns.give_back(before.fence());
  turns.reset();
  EXPECT_EQ(turns.take(60, 60, lane), 0U);
  EXPECT_TRUE(lane.waited.empty());
}

// Beside a model that knows who last had each byte. What another lane has waited for is nothing that a lane knows.
TEST(ScratchTurns, NoByteIsTakenOverUnawaited) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 600; ++round) {
    const std::size_t size = 1 + random() % 64, count = 1 + static_cast<std::size_t>(round) % 3;
    ScratchTurns turns;
    std::vector<Listener> lanes(count);
    std::vector<int> last(size, -1);
    std::vector<base::Promise> promises(100);
    for (int i = 0; i < 100; ++i) {
      Listener& lane = lanes[random() % count];
      const std::size_t bytes = random() % (size + 1), begin = turns.take(bytes, size, lane);
      ASSERT_LE(begin + bytes, size);
      for (std::size_t at = begin; at < begin + bytes; ++at) {
        if (last[at] >= 0) {
          const auto* fence = promises[static_cast<std::size_t>(last[at])].fence().state();
          ASSERT_TRUE(std::ranges::find(lane.waited, fence) != lane.waited.end())
              << "round " << round << ", turn " << i;
        }
        last[at] = i;
      }
      turns.give_back(promises[static_cast<std::size_t>(i)].fence());
    }
  }
}

}  // namespace
}  // namespace tessera::runtime
