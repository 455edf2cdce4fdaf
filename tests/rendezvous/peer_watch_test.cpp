// Tests that the end of a rank is reported once, and by which rank.
#include "tessera/rendezvous/peer_watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

namespace tessera::rendezvous {
namespace {

using Reports = std::vector<std::pair<int, std::vector<int>>>;  // the reporting rank and the lost ranks

// The watches of several ranks in one process.
struct Watches {
  std::mutex mutex;
  Reports reports;
  bool stop = false;
  std::vector<std::unique_ptr<PeerWatch>> of;

  explicit Watches(int ranks) {
    std::string address;
    for (int rank = 0; rank < ranks; ++rank)
      of.push_back(std::make_unique<PeerWatch>(
          PeerWatch::Options{.rank = rank,
                             .ranks = ranks,
                             .share = [&](const std::string& text) { return rank == 0 ? address = text : address; },
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
    for (int i = 0; i < 2000 && reported().empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
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
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(watches.reported(), Reports());
}

// A report that is due is made before the watch ends.
TEST(PeerWatch, ALossIsReportedBeforeRank0Leaves) {
  Watches watches(2);
  watches.of[1].reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  watches.of[0]->leave();
  EXPECT_EQ(watches.reported(), (Reports{{0, {1}}}));
}

TEST(PeerWatch, RanksThatEndAfterARequestToStopAreNotReported) {
  Watches watches(2);
  {
    const std::lock_guard lock(watches.mutex);
    watches.stop = true;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  watches.of[1].reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  EXPECT_EQ(watches.reported(), Reports());
}

}  // namespace
}  // namespace tessera::rendezvous
