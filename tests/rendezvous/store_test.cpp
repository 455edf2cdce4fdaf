// Tests the store in memory, with and without limits, and boards over it.
#include "tessera/rendezvous/store.h"

#include <gtest/gtest.h>

#include "tessera/rendezvous/boards/store_board.h"
#include "tessera/rendezvous/limited_store.h"
#include "tests/rendezvous/store_cases.h"

namespace tessera::rendezvous {
namespace {

INSTANTIATE_TEST_SUITE_P(Memory, Stores, testing::Values(StoreKind{"memory", make_memory_store}));
INSTANTIATE_TEST_SUITE_P(Limited, Stores, testing::Values(StoreKind{"limited", [] {
                                                                      constexpr std::chrono::seconds limit(30);
                                                                      return make_limited_store(
                                                                          make_memory_store,
                                                                          {.connect = limit, .answer = limit}, "here");
                                                                    }}));

bool comes(const Board& board, int rank, const std::string& text) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (board.read(rank) != text) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

TEST(StoreBoards, EveryRankReadsTheNewestStatuses) {
  const auto store = make_memory_store();
  std::vector<std::unique_ptr<Board>> boards;
  for (int rank = 0; rank < 3; ++rank) boards.push_back(make_store_board(store->connect(), rank, 3));
  for (const auto& board : boards) EXPECT_EQ(board->read(1), "");
  for (const std::string text : {"first", "second"}) {
    boards[1]->post(text);
    EXPECT_EQ(boards[1]->read(1), text);
    for (const auto& board : boards) EXPECT_TRUE(comes(*board, 1, text));
  }
  boards[2]->post("last words");
  boards.pop_back();
  EXPECT_TRUE(comes(*boards[0], 2, "last words"));
}

// A store whose calls fail after `gone` is set.
class Gone final : public Store {
 public:
  explicit Gone(std::shared_ptr<std::atomic<bool>> gone) : gone_(std::move(gone)) {}
  void set(const std::string& key, const std::string& value) override { there().set(key, value); }
  std::optional<std::string> find(const std::string& key) override { return there().find(key); }
  std::int64_t add(const std::string& key, std::int64_t amount) override { return there().add(key, amount); }
  void erase(const std::string& key) override { there().erase(key); }
  std::shared_ptr<Store> connect() override { return there().connect(); }

 private:
  Store& there() {
    if (*gone_) throw Error("gone");
    return *store_;
  }
  const std::shared_ptr<std::atomic<bool>> gone_;
  const std::shared_ptr<Store> store_ = make_memory_store();
};

TEST(StoreBoards, KeepEarlierStatusesIfTheStoreFails) {
  const auto gone = std::make_shared<std::atomic<bool>>(false);
  const auto store = std::make_shared<Gone>(gone);
  const auto own = make_store_board(store, 0, 2), other = make_store_board(store, 1, 2);
  other->post("arrived");
  EXPECT_TRUE(comes(*own, 1, "arrived"));
  *gone = true;
  other->post("lost");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(own->read(1), "arrived");
  EXPECT_EQ(other->read(1), "lost");
}

// Another program may have set the values of the store.
TEST(StoreBoards, ValuesThatNoRankPostsAreIgnored) {
  const auto store = make_memory_store();
  const auto own = make_store_board(store, 0, 3), other = make_store_board(store, 2, 3);
  store->set("status/1", std::string(kLongestStatus + 1, 'x'));
  store->set("version/1", "1");
  other->post("posted");
  EXPECT_EQ(own->read(1), "");
  EXPECT_TRUE(comes(*own, 2, "posted"));
  EXPECT_EQ(own->read(1), "");
  store->set("status/1", "short");
  store->set("version/1", std::string(1 << 20, '2'));
  other->post("again");
  EXPECT_TRUE(comes(*own, 2, "again"));
  EXPECT_EQ(own->read(1), "");
  store->set("version/1", "2");
  EXPECT_TRUE(comes(*own, 1, "short"));
}

}  // namespace
}  // namespace tessera::rendezvous
