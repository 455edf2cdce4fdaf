// Models built, trained and destroyed again and again in one process leave nothing behind.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>

#include "training.h"

namespace tessera::train {
namespace {

constexpr int kRounds = 50, kWarmUp = 10;

// A line of /proc/self/status: a count, or KiB.
std::int64_t status(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;) {
    if (word != key + ":") continue;
    std::int64_t value = -1;
    file >> value;
    return value;
  }
  return -1;
}

// A joined thread leaves the count a moment later.
std::int64_t threads_down_to(std::int64_t expected) {
  for (int tries = 0; tries < 500 && status("Threads") > expected; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return status("Threads");
}

// What each round leaves behind at least if one rank of four forgets one copy of its weights, KiB in all rounds that
// are counted.
std::int64_t least_leak(const testing::RunResult& result) {
  std::size_t elements = 0;
  for (const auto& [name, values] : result.tensors)
    if (name.starts_with("weight/")) elements += values.size();
  return static_cast<std::int64_t>(elements * sizeof(float) / 4) * (kRounds - kWarmUp) / 1024;
}

// What has grown; empty: nothing.
std::string growth() {
  mallopt(M_ARENA_MAX, 1);  // else the threads' heaps settle only after many rounds
  const testing::RunOptions options{.model = testing::odd_model(), .tp = 2, .gtp = 2, .blocks = 4, .steps = 3};
  std::int64_t threads = 0, warm = 0, leak = 0;
  for (int round = 1; round <= kRounds; ++round) {
    leak = least_leak(testing::run(options));
    if (round == 1) threads = status("Threads");
    if (const std::int64_t now = threads_down_to(threads); now > threads)
      return fmt::format("after round {} there are {} threads, after the first {}", round, now, threads);
    malloc_trim(0);
    if (round == kWarmUp) warm = status("VmRSS");
  }
  const std::int64_t now = status("VmRSS");
  if (warm > 0 && now - warm < leak) return "";
  return fmt::format("{} KiB are resident, after round {} {}; expected less than {} more", now, kWarmUp, warm, leak);
}

// In a process of its own, whose memory no other test has used.
TEST(GrowthDeathTest, FiftyTrainersLeaveNeitherThreadsNorMemory) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer keeps what was freed for a while";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto body = [] {
    const std::string grown = growth();
    std::cerr << grown << std::flush;
    std::_Exit(grown.empty() ? EXIT_SUCCESS : EXIT_FAILURE);
  };
  EXPECT_EXIT(body(), ::testing::ExitedWithCode(EXIT_SUCCESS), "");
}

}  // namespace
}  // namespace tessera::train
