#include "tessera/base/process/running_clock.h"

#include <gtest/gtest.h>

#include <csignal>
#include <thread>
#include <utility>

#include "tests/base/stopped_process.h"

namespace tessera::base {
namespace {

using namespace std::chrono_literals;

// A process whose steady clock starts at 1000 s.
class ReadTime : public testing::Test {
 protected:
  ReadTime() { begin_ = time_.at(1000s); }
  std::chrono::nanoseconds after(std::chrono::nanoseconds seconds) { return time_.at(1000s + seconds) - begin_; }

  RunningTime time_;
  std::chrono::nanoseconds begin_;
};

TEST_F(ReadTime, PassesLikeTheSteadyClockWhileItIsRead) {
  for (int i = 1; i <= 100; ++i) EXPECT_EQ(after(i * RunningTime::kLongestGap), i * RunningTime::kLongestGap);
}

TEST_F(ReadTime, CountsAStopAsTheLongestGap) {
  EXPECT_EQ(after(100ms), 100ms);
  EXPECT_EQ(after(3600s), 100ms + RunningTime::kLongestGap);
  EXPECT_EQ(after(3600s + 50ms), 150ms + RunningTime::kLongestGap);
  EXPECT_EQ(after(7200s), 150ms + 2 * RunningTime::kLongestGap);
}

// A thread may read the steady clock, and be stopped before it calls at().
TEST_F(ReadTime, DoesNotDecreaseIfAnEarlierTimeArrivesLater) {
  EXPECT_EQ(after(3600s), RunningTime::kLongestGap);
  EXPECT_EQ(after(100ms), RunningTime::kLongestGap);
  EXPECT_EQ(after(3600s + 10ms), RunningTime::kLongestGap + 10ms);
}

TEST(RunningClock, EndsAWaitWithoutAnEvent) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(wait_until(RunningClock::now() + 120ms, [](RunningClock::duration part) {
    EXPECT_LE(part, RunningClock::kReadEvery);
    std::this_thread::sleep_for(part);
    return false;
  }));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 120ms);
  int calls = 0;
  EXPECT_TRUE(wait_until(RunningClock::now() - 1s, [&](RunningClock::duration) { return ++calls == 1; }));
}

// The process is stopped for twice the time limit while it waits for an event that never occurs.
TEST(RunningClock, DoesNotCountAStopOfTheProcess) {
  constexpr auto limit = 600ms;
  const auto begin = std::chrono::steady_clock::now();
  const int code = run_with_stop(2 * limit, [&] {
    bool stops = true;
    const bool has_occurred = wait_until(RunningClock::now() + limit, [&](RunningClock::duration part) {
      if (std::exchange(stops, false)) raise(SIGSTOP);
      std::this_thread::sleep_for(part);
      return false;
    });
    return has_occurred ? 1 : 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 2 * limit + limit - RunningTime::kLongestGap);
}

}  // namespace
}  // namespace tessera::base
