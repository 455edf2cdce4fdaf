// The program starts its own ranks: this test starts itself.
#include "tessera/meet/processes.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include "tessera/meet/launcher.h"

namespace tessera::meet {
namespace {

using namespace std::chrono_literals;

std::string current_test() {
  return std::string("Processes.") + testing::UnitTest::GetInstance()->current_test_info()->name();
}
// The test that started this process as a rank; null in the process that was started by hand.
const char* starter() {
  return std::getenv("TESSERA_TEST_STARTER");
}
int rank() {
  return std::atoi(std::getenv("RANK"));
}
// Ranks run this test alone.
int run(int ranks, std::chrono::milliseconds grace = 10s) {
  setenv("TESSERA_TEST_STARTER", current_test().c_str(), 1);
  setenv("GTEST_FILTER", current_test().c_str(), 1);
  const int code = run_processes(ranks, grace);
  unsetenv("TESSERA_TEST_STARTER");
  unsetenv("GTEST_FILTER");
  return code;
}

// As a rank: does its part and leaves; nothing in other tests' ranks.
#define AS_A_RANK(...)                       \
  if (starter() != nullptr) {                \
    if (starter() != current_test()) return; \
    const auto part = __VA_ARGS__;           \
    std::_Exit(part());                      \
  }

TEST(Processes, EveryRankKnowsItsPlace) {
  AS_A_RANK([] {
    const bool same = std::string(std::getenv("LOCAL_RANK")) == std::getenv("RANK");
    const bool knows = same && std::getenv("WORLD_SIZE") == std::string("3") && std::getenv("MASTER_PORT") != nullptr;
    return knows && rank() < 3 ? 0 : 1;
  });
  EXPECT_EQ(run(3), 0);
}

TEST(Processes, HostTheirStoreWhateverIsLeftOverInAShell) {
  AS_A_RANK([] { return read_launch(own_variables()).hosts_store ? 1 : 0; });
  setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  EXPECT_EQ(run(2), 0);
  unsetenv("TORCHELASTIC_USE_AGENT_STORE");
}

TEST(Processes, TheFirstFailureIsTheResult) {
  AS_A_RANK([] {
    if (rank() == 0) std::this_thread::sleep_for(500ms);
    return rank() == 0 ? 4 : rank() == 1 ? 3 : 0;
  });
  EXPECT_EQ(run(3), 3);
}

// As nohup's and some daemons' children are: the kernel would forget their ends.
TEST(Processes, EndAlsoWhereTheEndsOfChildrenAreIgnored) {
  AS_A_RANK([] { return rank() == 1 ? 3 : 0; });
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  EXPECT_EQ(run(2), 3);
  EXPECT_EQ(std::signal(SIGCHLD, before), SIG_IGN);
}

TEST(Processes, WhoIsLeftAfterAFailureIsKilled) {
  AS_A_RANK([] {
    if (rank() == 1) raise(SIGKILL);
    std::this_thread::sleep_for(60s);
    return 0;
  });
  const auto start = std::chrono::steady_clock::now();
  testing::internal::CaptureStderr();
  EXPECT_EQ(run(2, 300ms), 128 + SIGKILL);
  const std::string lines = testing::internal::GetCapturedStderr();
  EXPECT_NE(lines.find("rank 1: ended by signal 9"), std::string::npos) << lines;
  EXPECT_NE(lines.find("rank 0: still ran 300 ms after another rank had failed"), std::string::npos) << lines;
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
}

}  // namespace
}  // namespace tessera::meet
