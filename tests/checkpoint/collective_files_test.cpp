#include "tessera/checkpoint/collective_files.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/checkpoint/checkpoint_testing.h"

namespace tessera::checkpoint {
namespace {

using namespace testing;
using namespace std::chrono_literals;

// The message of the error that each rank's call threw, or an empty text without an error.
std::vector<std::string> errors_of(int ranks, const std::function<void(comm::Communicator&, std::stop_token)>& body,
                                   std::atomic<int>* input_errors = nullptr) {
  std::vector<std::string> messages(static_cast<std::size_t>(ranks));
  on_ranks(ranks, [&](comm::Communicator& group) {
    try {
      run_together(group, "test", [&](const std::stop_token& stop) { body(group, stop); });
    } catch (const InputError& error) {
      messages[static_cast<std::size_t>(group.rank())] = error.what();
      if (input_errors != nullptr) ++*input_errors;
    } catch (const Error& error) {
      messages[static_cast<std::size_t>(group.rank())] = error.what();
    }
  });
  return messages;
}

TEST(CheckpointTogether, EveryRankThrowsOneRanksError) {
  const auto messages = errors_of(4, [](comm::Communicator& group, const std::stop_token&) {
    if (group.rank() == 2) throw Error("disk full");
  });
  for (const std::string& message : messages) EXPECT_EQ(message, "test: rank 2: disk full");
}

// Lengths of texts come from other processes.
TEST(CheckpointTogether, LengthsThatNoTextHasAreRefused) {
  for (std::int64_t length : {std::int64_t{-1}, std::int64_t{1} << 60}) {
    const std::string refused = fmt::format("rank 0 announced {} bytes of a text: expected 0 to 4294967296", length);
    on_ranks(2, [&](comm::Communicator& group) {
      if (group.rank() == 0)
        group.broadcast(&length, 1, quant::DType::i64, 0).synchronize();
      else
        EXPECT_THAT([&] { broadcast_text(group, ""); }, ThrowsMessage<Error>(refused));
    });
  }
}

TEST(CheckpointTogether, EveryRankThrowsTheLowestRanksErrorAndType) {
  std::atomic<int> input_errors{0};
  const auto messages = errors_of(
      3,
      [](comm::Communicator& group, const std::stop_token&) {
        if (group.rank() == 1) throw InputError("bad file");
        if (group.rank() == 2) throw std::runtime_error("other");
      },
      &input_errors);
  for (const std::string& message : messages) EXPECT_EQ(message, "test: rank 1: bad file (and 1 more ranks failed)");
  EXPECT_EQ(input_errors, 3);
}

TEST(CheckpointTogether, EveryRankThrowsAFailedAllocation) {
  std::atomic<int> agreed{0};
  on_ranks(3, [&](comm::Communicator& group) {
    try {
      run_together(group, "", [&](const std::stop_token&) {
        if (group.rank() == 1) std::vector<char> list(std::size_t{1} << 60);
      });
    } catch (const AgreedOutOfMemory& error) {
      agreed += std::string(error.what()).starts_with("rank 1: out of memory: ");
    }
  });
  EXPECT_EQ(agreed, 3);
}

TEST(CheckpointTogether, WithoutANameTheMessageIsUnchanged) {
  for (const int first : {0, 1}) {
    std::vector<std::string> messages(3);
    on_ranks(3, [&](comm::Communicator& group) {
      try {
        run_together(group, "", [&](const std::stop_token&) {
          if (group.rank() >= first) throw InputError("--out: is a file");
        });
      } catch (const InputError& error) {
        messages[static_cast<std::size_t>(group.rank())] = error.what();
      }
    });
    for (const std::string& message : messages)
      EXPECT_EQ(message, first == 0 ? "--out: is a file" : "rank 1: --out: is a file");
  }
}

TEST(CheckpointTogether, ARankMayWorkLongerThanTheGroupsTimeLimit) {
  comm::LocalOptions options;
  options.timeout = 1000ms;
  std::atomic<int> finished{0};
  on_ranks(
      2,
      [&](comm::Communicator& group) {
        run_together(group, "slow", [&](const std::stop_token&) {
          if (group.rank() == 1) std::this_thread::sleep_for(1800ms);
          ++finished;
        });
      },
      options);
  EXPECT_EQ(finished, 2);
}

TEST(CheckpointTogether, ADeadRankStopsTheOtherRanks) {
  std::atomic<bool> stopped{false};
  const auto run = [&] {
    on_ranks(2, [&](comm::Communicator& group) {
      if (group.rank() == 1) throw Error("rank 1 died");
      run_together(group, "work", [&](const std::stop_token& stop) {
        for (int i = 0; i < 1000 && !stop.stop_requested(); ++i) std::this_thread::sleep_for(10ms);
        stopped = stop.stop_requested();
      });
    });
  };
  EXPECT_THROW(run(), Error);
  EXPECT_TRUE(stopped);
}

// The ranks look for different paths, as ranks do whose file systems differ.
TEST(CheckpointTogether, RankZeroDecidesWhetherAFileExists) {
  const TemporaryFolder root;
  spill(root / "file", "x");
  for (const int seeing : {0, 1}) {
    std::vector<int> answers(3, -1);
    on_ranks(3, [&](comm::Communicator& group) {
      const bool sees = (group.rank() == 0) == (seeing == 0);
      answers[static_cast<std::size_t>(group.rank())] =
          exists_on_first_rank(group, root / (sees ? "file" : "absent")) ? 1 : 0;
    });
    EXPECT_EQ(answers, std::vector<int>(3, seeing == 0 ? 1 : 0));
  }
}

TEST(CheckpointTogether, SendsTextsToAndFromRankZero) {
  on_ranks(3, [](comm::Communicator& group) {
    const std::string own(static_cast<std::size_t>(group.rank() * 1000), static_cast<char>('a' + group.rank()));
    EXPECT_EQ(broadcast_text(group, group.rank() == 0 ? "from zero" : "ignored"), "from zero");
    EXPECT_EQ(broadcast_text(group, ""), "");
    const std::vector<std::string> all = gather_text(group, own);
    ASSERT_EQ(all.size(), group.rank() == 0 ? 3u : 0u);
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      EXPECT_EQ(all[rank], std::string(rank * 1000, static_cast<char>('a' + rank)));
  });
}

}  // namespace
}  // namespace tessera::checkpoint
