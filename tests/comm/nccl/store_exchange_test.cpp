// Tests exchanges of texts through the store. Needs no device.
#include "tessera/comm/nccl/store_exchange.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::shared_ptr<NcclWatchdog> make_watchdog(rendezvous::Store& store, int rank) {
  return std::make_shared<NcclWatchdog>(store.connect(), rank, base::Device{}, seconds(60), nullptr);
}

TEST(NcclStoreExchange, EveryRankReceivesAllTextsAndOnlyTheLastStayInTheStore) {
  constexpr int ranks = 3, rounds = 4;
  const auto store = rendezvous::make_memory_store();
  const auto text_of = [](int round, int rank) { return round == 1 ? "" : std::to_string(10 * round + rank); };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      NcclStoreExchange exchange(store->connect(), make_watchdog(*store, rank), "name", rank, ranks);
      for (int round = 0; round < rounds; ++round) {
        std::vector<int> seen;
        exchange.exchange(text_of(round, rank), base::RunningClock::now() + seconds(30),
                          [&](int peer, const std::string& theirs) {
                            seen.push_back(peer);
                            EXPECT_EQ(theirs, text_of(round, peer));
                          });
        EXPECT_EQ(seen, (std::vector<int>{(rank + 1) % ranks, (rank + 2) % ranks}));
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < ranks; ++rank)
    for (int round = 0; round < rounds; ++round)
      EXPECT_EQ(store->find(fmt::format("name/{}/{}", round, rank)).has_value(), round == rounds - 1);
}

// Another program may have set the value.
TEST(NcclStoreExchange, AValueThatNoRankWritesIsRefused) {
  const auto store = rendezvous::make_memory_store();
  for (const char* value : {"", "theirs"}) {
    NcclStoreExchange exchange(store, make_watchdog(*store, 0), "name", 0, 2);
    store->set("name/0/1", value);
    EXPECT_THROW(exchange.exchange("own", base::RunningClock::now() + seconds(30), [](int, const std::string&) {}),
                 Error);
  }
}

TEST(NcclStoreExchange, ThrowsAtItsDeadlineAndIfSeeThrows) {
  const auto store = rendezvous::make_memory_store();
  NcclStoreExchange exchange(store, make_watchdog(*store, 0), "name", 0, 2);
  const auto ignore = [](int, const std::string&) {};
  EXPECT_THROW(exchange.exchange("own", base::RunningClock::now() + milliseconds(20), ignore), Error);
  store->set("name/1/1", "+theirs");
  const auto refuse = [](int, const std::string& theirs) { throw Error("refused {}", theirs); };
  EXPECT_THROW(exchange.exchange("own", base::RunningClock::now() + seconds(30), refuse), Error);
}

}  // namespace
}  // namespace tessera::comm
