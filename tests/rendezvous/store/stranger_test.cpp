// A run on one host while a stranger disturbs the port of its store.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <thread>

#include "tessera/rendezvous/boards/failure_exchange.h"
#include "tessera/rendezvous/boards/store_board.h"
#include "tessera/rendezvous/run_identity.h"
#include "tessera/rendezvous/tcp_store.h"
#include "tests/rendezvous/listening.h"
#include "tests/rendezvous/stranger/process.h"
#include "tests/rendezvous/stranger/stranger.h"

namespace tessera::rendezvous {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr int kRanks = 3;
constexpr StoreLimits kLimits{.connect = seconds(60), .answer = seconds(60)};

// Returns the resident memory of this process in MiB.
std::int64_t resident_mib() {
  std::int64_t all = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE) >> 20;
}

// One rank. It uses the store as a run on GPUs does.
class Rank {
 public:
  explicit Rank(Launch launch)
      : launch_(std::move(launch)),
        port_(launch_),
        store_(join_run(make_tcp_store(launch_, kLimits), launch_, kLimits.connect)),
        failures_(make_prefix_store(store_->connect(), "nccl/"), launch_.rank),
        board_(make_store_board(make_prefix_store(store_->connect(), "nccl/board/0/"), launch_.rank, kRanks)) {}

  // Exchanges texts with the other ranks until `ends` returns true on rank 0. Then reads the last status of each rank.
  template <typename Condition>
  void exchange_until(Condition ends) {
    for (bool is_last = false; !is_last; ++round_) {
      store_->set(key(round_, launch_.rank), launch_.rank == 0 && ends() ? "last" : "more");
      for (int peer = 0; peer < kRanks; ++peer) {
        const std::string theirs = store_->get(key(round_, peer), kLimits.answer);
        is_last = is_last || (peer == 0 && theirs == "last");
        EXPECT_TRUE(theirs == "more" || is_last) << theirs;
      }
      if (round_ > 0) store_->erase(key(round_ - 1, launch_.rank));
      board_->post(std::to_string(round_));
    }
    const auto end = steady_clock::now() + kLimits.answer;
    for (int peer = 0; peer < kRanks; ++peer)
      while (board_->read(peer) != std::to_string(round_ - 1) && steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_LT(steady_clock::now(), end);
    EXPECT_EQ(failures_.received(), std::nullopt);
  }
  void close_port() { port_.close_when_all_connected(store_); }

 private:
  static std::string key(std::int64_t round, int rank) { return fmt::format("text/{}/{}", round, rank); }

  Launch launch_;
  StorePort port_;
  const std::shared_ptr<Store> store_;
  FailureExchange failures_;
  const std::unique_ptr<Board> board_;
  std::int64_t round_ = 0;
};

// Runs `body` on every rank, each in its own thread.
void run_ranks(std::vector<std::unique_ptr<Rank>>& ranks,
               const std::function<void(std::unique_ptr<Rank>&, int)>& body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] { body(ranks[static_cast<std::size_t>(rank)], rank); });
}

// Before all ranks have connected, the stranger can open connections, which stay open until it closes them.
TEST(Stranger, ChangesNothingInARunThatUsesTheStore) {
  disable_store_log();
  const int port = port_of(bind_socket(Interfaces::loopback, 0));
  const std::string run = draw_identity();
  Launch host{.rank = 0, .size = kRanks, .port = port, .run = run};
  make_tcp_store({.port = port}, kLimits);  // the first store opens files that stay open
  const std::size_t files_before = open_files().size();
  StorePort listening(host);
  StrangerProcess early(port, stranger_time());
  std::vector<std::unique_ptr<Rank>> ranks(kRanks);
  run_ranks(ranks, [&](std::unique_ptr<Rank>& own, int rank) {
    own = std::make_unique<Rank>(rank == 0 ? host : Launch{.rank = rank, .size = kRanks, .port = port, .run = run});
    own->exchange_until([&] { return !early.runs(); });
  });
  EXPECT_TRUE(early.was_accepted());
  for (const auto& rank : ranks) rank->close_port();
  const auto end = steady_clock::now() + kLimits.answer;
  while (Stranger::is_answered(port, std::chrono::milliseconds(200)) && steady_clock::now() < end) continue;

  const std::size_t files = open_files().size();
  const std::int64_t memory = resident_mib();
  StrangerProcess late(port, stranger_time());
  run_ranks(ranks, [&](std::unique_ptr<Rank>& own, int) { own->exchange_until([&] { return !late.runs(); }); });
  EXPECT_LE(open_files().size(), files);
  EXPECT_LT(resident_mib(), memory + 64);
  ranks.clear();
  EXPECT_EQ(open_files().size(), files_before);
}

}  // namespace
}  // namespace tessera::rendezvous
