// Tests that the end of a rank is reported once, and by which rank.
#include "tessera/rendezvous/peer_watch.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "tessera/rendezvous/socket.h"
#include "tests/rendezvous/listening.h"
#include "tests/rendezvous/stranger/process.h"

namespace tessera::rendezvous {
namespace {

using std::chrono::milliseconds;
using Reports = std::vector<std::pair<int, std::vector<int>>>;  // the reporting rank and the lost ranks

// The watches of several ranks in one process.
struct Watches {
  std::mutex mutex;
  Reports reports;
  bool stop = false;
  std::vector<std::unique_ptr<PeerWatch>> of;

  // before(0) is called when rank 0 listens and does not accept connections yet, before(R) when it accepts them and
  // rank R has not connected yet.
  explicit Watches(
      int ranks, bool is_one_host = true, const std::function<void(int)>& before = [](int) {}) {
    std::string address;
    for (int rank = 0; rank < ranks; ++rank)
      of.push_back(std::make_unique<PeerWatch>(PeerWatch::Options{.rank = rank,
                                                                  .ranks = ranks,
                                                                  .is_one_host = is_one_host,
                                                                  .share =
                                                                      [&](const std::string& text) {
                                                                        before(rank);
                                                                        return rank == 0 ? address = text : address;
                                                                      },
                                                                  .lost =
                                                                      [this, rank](const std::vector<int>& lost) {
                                                                        const std::lock_guard lock(mutex);
                                                                        reports.emplace_back(rank, lost);
                                                                      },
                                                                  .stop_requested =
                                                                      [this] {
                                                                        const std::lock_guard lock(mutex);
                                                                        return stop;
                                                                      }}));
  }
  ~Watches() {
    for (auto& watch : of)
      if (watch) watch->leave();
  }
  Reports reported() {
    const std::lock_guard lock(mutex);
    return reports;
  }
  void await_report() {
    for (int i = 0; i < 2000 && reported().empty(); ++i) std::this_thread::sleep_for(milliseconds(5));
  }
};

TEST(PeerWatch, ReportsRanksThatEndTogether) {
  Watches watches(5);
  watches.of[1]->leave();
  watches.of[3].reset();
  watches.of[2].reset();
  watches.await_report();
  EXPECT_EQ(watches.reported(), (Reports{{0, {2, 3}}}));
}

TEST(PeerWatch, TheEndOfRank0IsReportedByRank1) {
  Watches watches(3);
  watches.of[0].reset();
  watches.await_report();
  EXPECT_EQ(watches.reported(), (Reports{{1, {0}}}));
}

TEST(PeerWatch, RanksThatLeaveAreNotReported) {
  Watches watches(3);
  for (const int rank : {2, 0, 1}) watches.of[static_cast<std::size_t>(rank)]->leave();
  for (auto& watch : watches.of) watch.reset();
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_EQ(watches.reported(), Reports());
}

// A report that is due is made before the watch ends.
TEST(PeerWatch, ALossIsReportedBeforeRank0Leaves) {
  Watches watches(2);
  watches.of[1].reset();
  std::this_thread::sleep_for(milliseconds(150));
  watches.of[0]->leave();
  EXPECT_EQ(watches.reported(), (Reports{{0, {1}}}));
}

TEST(PeerWatch, RanksThatEndAfterARequestToStopAreNotReported) {
  Watches watches(2);
  {
    const std::lock_guard lock(watches.mutex);
    watches.stop = true;
  }
  std::this_thread::sleep_for(milliseconds(700));
  watches.of[1].reset();
  std::this_thread::sleep_for(milliseconds(400));
  EXPECT_EQ(watches.reported(), Reports());
}

TEST(PeerWatch, Rank0ListensUntilAllRanksHaveConnected) {
  for (const bool is_one_host : {true, false}) {
    std::vector<Listening> during;
    Watches watches(3, is_one_host, [&](int) { during = listening_sockets(); });
    ASSERT_EQ(during.size(), 1u);
    EXPECT_EQ(during[0].is_loopback, is_one_host);
    for (int i = 0; i < 2000 && !listening_sockets().empty(); ++i) std::this_thread::sleep_for(milliseconds(5));
    EXPECT_TRUE(listening_sockets().empty());
  }
}

// The address is that of a program that closes connections, e.g. on another host with the same name.
TEST(PeerWatch, AConnectionToAnotherProgramIsNotALoss) {
  const Socket other = bind_socket(Interfaces::loopback, 0);
  ASSERT_EQ(listen(other.get(), 8), 0);
  std::jthread closes([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) Socket(accept(other.get(), nullptr, nullptr));
  });
  std::atomic<int> reports = 0;
  const auto watch = [&](const std::string& address) {
    PeerWatch(PeerWatch::Options{.rank = 1,
                                 .ranks = 2,
                                 .connecting = milliseconds(200),
                                 .is_one_host = true,
                                 .share = [&](const std::string&) { return address; },
                                 .lost = [&](const std::vector<int>&) { ++reports; },
                                 .stop_requested = {}});
  };
  for (const std::string& address :
       {fmt::format("network\nhost\n{}\nhello\nwelcome", port_of(other)), std::string(),
        std::string("network\nhost\n70000\nhello\nwelcome"), std::string("network\nhost\nport\nhello\nwelcome"),
        fmt::format("network\nhost\n{}\n\n\n", port_of(other)), std::string(1000, '\n')})
    watch(address);
  EXPECT_EQ(reports, 0);
  closes.request_stop();
  shutdown(other.get(), SHUT_RDWR);
}

// The stranger disturbs rank 0 for some time before the other ranks connect, and while they connect. The port is open
// for at most 30 s.
TEST(PeerWatch, AStrangerChangesNothing) {
  constexpr std::size_t kMost = 8;  // descriptors of rank 0's watch, and of connections that wait for a hello
  const std::size_t files = open_files().size();
  std::size_t most = 0;
  std::unique_ptr<StrangerProcess> first, second;
  const auto disturb = [&](int rank) {
    if (rank != 1) return;
    const int port = listening_sockets().at(0).port;
    first = std::make_unique<StrangerProcess>(port, std::min(stranger_time(), std::chrono::seconds(20)));
    for (; first->runs(); std::this_thread::sleep_for(milliseconds(20))) most = std::max(most, open_files().size());
    second = std::make_unique<StrangerProcess>(port, std::chrono::seconds(60));
  };
  {
    Watches watches(3, true, disturb);
    second.reset();
    EXPECT_TRUE(first->was_accepted());
    EXPECT_LE(most, files + kMost);
    EXPECT_EQ(watches.reported(), Reports());
    watches.of[2].reset();
    watches.await_report();
    EXPECT_EQ(watches.reported(), (Reports{{0, {2}}}));
  }
  EXPECT_EQ(open_files().size(), files);
}

}  // namespace
}  // namespace tessera::rendezvous
