// Tests run_processes: the test program starts itself as ranks.
#include "tessera/rendezvous/processes.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

#include "tessera/rendezvous/launcher.h"
#include "tessera/rendezvous/stop_requests.h"

namespace tessera::rendezvous {
namespace {

using namespace std::chrono_literals;

std::string current_test() {
  return std::string("Processes.") + testing::UnitTest::GetInstance()->current_test_info()->name();
}
// Returns the test that started this process as a rank, or null if this process is not a rank.
const char* starter() {
  return std::getenv("TESSERA_TEST_STARTER");
}
int rank() {
  return std::atoi(std::getenv("RANK"));
}
// Starts ranks that run only the current test.
int run(int ranks, std::chrono::milliseconds grace = 10s, const std::function<bool()>& stop_requested = {}) {
  setenv("TESSERA_TEST_STARTER", current_test().c_str(), 1);
  setenv("GTEST_FILTER", current_test().c_str(), 1);
  const int code = run_processes(ranks, grace, stop_requested);
  unsetenv("TESSERA_TEST_STARTER");
  unsetenv("GTEST_FILTER");
  return code;
}

// In a rank: runs the rank's part and exits. In ranks of other tests: returns.
#define AS_A_RANK(...)                       \
  if (starter() != nullptr) {                \
    if (starter() != current_test()) return; \
    const auto part = __VA_ARGS__;           \
    std::_Exit(part());                      \
  }

TEST(Processes, EveryRankHasItsVariables) {
  AS_A_RANK([] {
    const bool same = std::string(std::getenv("LOCAL_RANK")) == std::getenv("RANK");
    const bool knows = same && std::getenv("WORLD_SIZE") == std::string("3") && std::getenv("MASTER_PORT") != nullptr;
    const Launch launch = read_launch(own_variables());
    return knows && rank() < 3 && launch.is_one_host && launch.run.size() == 32 ? 0 : 1;
  });
  EXPECT_EQ(run(3), 0);
}

TEST(Processes, HostTheirStoreDespiteOldVariablesOfAShell) {
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

// nohup and some daemons start programs with SIGCHLD ignored. The kernel would then drop the exit statuses of ranks.
TEST(Processes, ReturnTheExitCodeIfSigchldIsIgnored) {
  AS_A_RANK([] { return rank() == 1 ? 3 : 0; });
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  EXPECT_EQ(run(2), 3);
  EXPECT_EQ(std::signal(SIGCHLD, before), SIG_IGN);
}

TEST(Processes, RemainingRanksAreKilledAfterAFailure) {
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

// Blocks a signal in this thread, and in threads that it starts later. Otherwise the signal could end this process
// before run_processes blocks it, or in the sending thread.
class BlockedSignal {
 public:
  explicit BlockedSignal(int signal = SIGTERM) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    pthread_sigmask(SIG_BLOCK, &set, &before_);
  }
  ~BlockedSignal() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignal(const BlockedSignal&) = delete;
  BlockedSignal& operator=(const BlockedSignal&) = delete;

 private:
  sigset_t before_{};
};
// Sends this process a signal after the given time. The signal must be blocked or ignored.
std::jthread send(std::chrono::milliseconds time, int signal = SIGTERM) {
  return std::jthread([=] {
    std::this_thread::sleep_for(time);
    kill(getpid(), signal);
  });
}
// In a rank: acts as a program that ends normally after a request to stop.
std::atomic<bool> received_request{false};
int end_well() {
  for (const int signal : kStopSignals) std::signal(signal, [](int) { received_request = true; });
  std::this_thread::sleep_for(300ms);  // signals that arrive meanwhile must not end the rank
  accept_stop_signals();
  for (int turn = 0; turn < 1000 && !received_request; ++turn) std::this_thread::sleep_for(10ms);
  return received_request ? 0 : 9;
}

TEST(Processes, ARequestToStopReachesRanksThatStillBlockIt) {
  AS_A_RANK(end_well);
  for (const int signal : {SIGTERM, SIGHUP}) {
    const BlockedSignal blocked(signal);
    const std::jthread sender = send(20ms, signal);
    EXPECT_EQ(run(2), 0) << signal;
  }
}

// A second request would kill the ranks after a second.
TEST(Processes, AnIgnoredSignalIsNoRequest) {
  AS_A_RANK([] {
    std::this_thread::sleep_for(2500ms);
    return 0;
  });
  const auto before = std::signal(SIGINT, SIG_IGN);
  const std::jthread first = send(100ms, SIGINT), second = send(800ms, SIGINT);
  EXPECT_EQ(run(2), 0);
  std::signal(SIGINT, before);
}

TEST(Processes, AnEarlierRequestIsForwarded) {
  AS_A_RANK(end_well);
  EXPECT_EQ(run(2, 10s, [] { return true; }), 0);
}

TEST(Processes, ASecondRequestKillsRanksThatDoNotEnd) {
  AS_A_RANK([] {
    std::signal(SIGTERM, SIG_IGN);
    accept_stop_signals();
    std::this_thread::sleep_for(60s);
    return 0;
  });
  const auto start = std::chrono::steady_clock::now();
  const BlockedSignal blocked;
  const std::jthread first = send(100ms), second = send(1000ms);
  testing::internal::CaptureStderr();
  EXPECT_EQ(run(2), 128 + SIGKILL);
  const std::string lines = testing::internal::GetCapturedStderr();
  EXPECT_NE(lines.find("rank 1: still ran 1000 ms after a second request to stop: killed"), std::string::npos) << lines;
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
}

}  // namespace
}  // namespace tessera::rendezvous
