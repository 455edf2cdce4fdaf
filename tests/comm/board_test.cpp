// Tests of boards on `local` and `mpi`.
#include "tessera/rendezvous/boards/board.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "tessera/base/error.h"
#include "tests/comm/ranks.h"

namespace tessera::comm {
namespace {

using std::chrono::steady_clock;

bool comes(const rendezvous::Board& board, int rank, const std::string& text) {
  const auto limit = steady_clock::now() + std::chrono::seconds(30);
  while (board.read(rank) != text) {
    if (steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

std::string status_of(int rank, std::size_t bytes) {
  std::string text = std::to_string(rank) + ":";
  while (text.size() < bytes) text += static_cast<char>('a' + (text.size() * 7 + static_cast<std::size_t>(rank)) % 26);
  return text;
}

TEST(Boards, EveryRankReadsWhatEveryRankPosted) {
  on_worlds([](World& world) {
    const auto group = make_whole_group(world, world.size());
    const auto board = world.make_board();
    for (int rank = 0; rank < world.size(); ++rank) EXPECT_EQ(board->read(rank), "");
    group->barrier().synchronize();
    for (const std::size_t bytes : {10, 100'000}) {
      board->post(status_of(world.rank(), bytes));
      for (int rank = 0; rank < world.size(); ++rank) EXPECT_TRUE(comes(*board, rank, status_of(rank, bytes)));
      group->barrier().synchronize();
    }
    board->post("");
    for (int rank = 0; rank < world.size(); ++rank) EXPECT_TRUE(comes(*board, rank, ""));
    group->barrier().synchronize();
  });
}

TEST(Boards, NewerStatusesReplaceOlderOnes) {
  on_worlds([](World& world) {
    const auto group = make_whole_group(world, world.size());
    const auto board = world.make_board();
    constexpr int last = 50;
    std::vector<int> seen(static_cast<std::size_t>(world.size()));
    bool all = false;
    const auto limit = steady_clock::now() + std::chrono::seconds(30);
    for (int i = 1; !all && steady_clock::now() < limit; ++i) {
      // Texts of different sizes.
      if (i <= last) board->post(std::string(i % 2 == 0 ? 50'000 : 0, '0') + std::to_string(i));
      all = i > last;
      // Leaves the processors to the threads that send the statuses.
      if (all) std::this_thread::sleep_for(std::chrono::microseconds(200));
      for (int rank = 0; rank < world.size(); ++rank) {
        const std::string text = board->read(rank);
        const int number = text.empty() ? 0 : std::stoi(text);
        EXPECT_GE(number, seen[static_cast<std::size_t>(rank)]);
        seen[static_cast<std::size_t>(rank)] = number;
        all = all && number == last;
      }
    }
    EXPECT_TRUE(all);
    group->barrier().synchronize();
  });
}

// Rank 0's host thread waits in a barrier. Rank 1 enters the barrier only after it has received an answer from rank 0's
// board.
TEST(Boards, WorkWhileTheHostWaitsInACollective) {
  on_worlds([](World& world) {
    const auto group = make_whole_group(world, world.size());
    const auto board = world.make_board();
    if (world.size() > 1 && world.rank() == 0) {
      std::thread reader([&] {
        if (comes(*board, 1, "question")) board->post("answer");
      });
      group->barrier().synchronize();
      reader.join();
    } else {
      if (world.rank() == 1) {
        board->post("question");
        EXPECT_TRUE(comes(*board, 0, "answer"));
      }
      group->barrier().synchronize();
    }
    group->barrier().synchronize();
  });
}

TEST(Boards, SeveralBoardsAreMadeAndDestroyed) {
  on_worlds([](World& world) {
    const auto group = make_whole_group(world, world.size());
    const auto kept = world.make_board();
    kept->post("kept " + std::to_string(world.rank()));
    for (int round = 0; round < 20; ++round) {
      const auto board = world.make_board();
      board->post(status_of(world.rank() + round, 5000));
      // Other ranks may already have destroyed the board. Every second round waits for all statuses.
      if (round % 2 == 1) continue;
      for (int rank = 0; rank < world.size(); ++rank) EXPECT_TRUE(comes(*board, rank, status_of(rank + round, 5000)));
      group->barrier().synchronize();
    }
    for (int rank = 0; rank < world.size(); ++rank) EXPECT_TRUE(comes(*kept, rank, "kept " + std::to_string(rank)));
    group->barrier().synchronize();
  });
}

TEST(Boards, RefuseLongStatusesAndUnknownRanks) {
  on_worlds([](World& world) {
    const auto board = world.make_board();
    EXPECT_THROW(board->post(std::string(rendezvous::kLongestStatus + 1, 'x')), Error);
    EXPECT_THROW(board->read(world.size()), Error);
    EXPECT_THROW(board->read(-1), Error);
    EXPECT_EQ(board->read(world.rank()), "");
    board->post(std::string(rendezvous::kLongestStatus, 'x'));
    EXPECT_EQ(board->read(world.rank()).size(), rendezvous::kLongestStatus);
  });
}

}  // namespace
}  // namespace tessera::comm
