// Models built, trained and destroyed again and again in one process leave nothing behind.
#include <gtest/gtest.h>
#include <malloc.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "training.h"

namespace tessera::train {
namespace {

// A line of /proc/self/status: a count, or KiB.
std::int64_t status(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;)
    if (word == key + ":") {
      std::int64_t value = 0;
      file >> value;
      return value;
    }
  throw std::runtime_error("/proc/self/status has no " + key);
}

// A joined thread leaves the count a moment later.
std::int64_t threads_down_to(std::int64_t expected) {
  for (int tries = 0; tries < 500 && status("Threads") > expected; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return status("Threads");
}

TEST(Growth, FiftyTrainersLeaveNeitherThreadsNorMemory) {
  constexpr int kRounds = 400, kWarmUp = 10;
  testing::RunOptions options{.model = testing::odd_model(), .tp = 2, .gtp = 2, .blocks = 4};
  std::int64_t warm = 0, threads = 0;
  for (int round = 1; round <= kRounds; ++round) {
    const testing::RunResult result = testing::run(options);
    ASSERT_EQ(result.losses.size(), 3u);
    if (round == 1) threads = status("Threads");
    ASSERT_EQ(threads_down_to(threads), threads) << "after round " << round;
    malloc_trim(0);
    if (round == kWarmUp) warm = status("VmRSS");
    printf("%d %ld\n", round, status("VmRSS"));
  }
  EXPECT_LE(status("VmRSS"), warm);
}

}  // namespace
}  // namespace tessera::train
