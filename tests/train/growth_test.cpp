// Checks that models that are repeatedly built, trained and destroyed in one process leak neither threads nor memory.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>

#include "tests/train/training.h"

namespace tessera::train {
namespace {

constexpr int kWarmUp = 10, kRounds = 40, kTries = 3;

// Returns a line of /proc/self/status: a count, or KiB.
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

// Waits until at most `threads` threads remain, but at most 5 s, and returns the resident KiB. The kernel counts a
// joined thread for a short time.
std::int64_t resident_without_threads(std::int64_t threads) {
  for (int tries = 0; tries < 500 && status("Threads") > threads; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  malloc_trim(0);
  return status("VmRSS");
}

// The least leak in KiB after `kRounds` rounds if one of four ranks leaks one copy of its weights per round.
std::int64_t least_leak(const testing::RunResult& result) {
  std::size_t elements = 0;
  for (const auto& [name, values] : result.tensors)
    if (name.starts_with("weight/")) elements += values.size();
  return static_cast<std::int64_t>(elements * sizeof(float) / 4) * kRounds / 1024;
}

// Builds, trains and destroys models `rounds` times. Returns the result of the last.
testing::RunResult rounds_of_trainers(int rounds) {
  const testing::RunOptions options{.model = testing::odd_model(), .tp = 2, .gtp = 2, .blocks = 4, .steps = 3};
  testing::RunResult result;
  for (int round = 0; round < rounds; ++round) result = testing::run(options);
  return result;
}

// Returns a description of the growth, empty without growth. A leak grows in every try by more than half of least_leak.
// The heap and the libraries' own pages may also grow in one try (868 KiB were measured on 16 cores).
std::string growth() {
  mallopt(M_ARENA_MAX, 1);  // otherwise the threads' heaps settle only after many rounds
  rounds_of_trainers(1);
  const std::int64_t threads = status("Threads");
  const std::int64_t leak = least_leak(rounds_of_trainers(kWarmUp));
  std::int64_t before = resident_without_threads(threads);
  std::string grown;
  for (int attempt = 1; attempt <= kTries; ++attempt) {
    rounds_of_trainers(kRounds);
    const std::int64_t now = resident_without_threads(threads);
    if (const std::int64_t left = status("Threads"); left > threads)
      return fmt::format("after {} rounds more there are {} threads, after the first {}", kRounds, left, threads);
    if (before > 0 && now - before < leak / 2) return "";
    grown += fmt::format("{} KiB are resident, {} rounds before {}; expected less than {} more\n", now, kRounds, before,
                         leak / 2);
    before = now;
  }
  return grown;
}

// Runs in a separate process, whose memory no other test has used.
TEST(GrowthDeathTest, TrainersLeakNeitherThreadsNorMemory) {
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
