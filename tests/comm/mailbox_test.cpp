#include "tessera/comm/peer_mailbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/peer_queues.h"

namespace tessera::comm {
namespace {

TEST(PeerMailbox, KeepsTheOrderOfEachSender) {
  const auto own = PeerMailbox::create("tessera-test", 2);
  const auto first = PeerMailbox::open(own->name(), 2), second = PeerMailbox::open(own->name(), 2);
  EXPECT_FALSE(first->try_take(0).has_value());
  for (std::int64_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(own->try_post(0, {.offset = i, .bytes = 10 * i}));
    ASSERT_TRUE(own->try_post(1, {.offset = 100 + i, .bytes = i}));
  }
  for (std::int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(second->try_take(1)->offset, 100 + i);
    const auto taken = first->try_take(0);
    ASSERT_TRUE(taken.has_value());
    EXPECT_EQ(taken->offset, i);
    EXPECT_EQ(taken->bytes, 10 * i);
  }
  EXPECT_FALSE(second->try_take(1).has_value());
}

TEST(PeerMailbox, IsFullAtItsLimitAndAcceptsMoreAfterATake) {
  const auto own = PeerMailbox::create("tessera-test", 1);
  for (std::size_t i = 0; i < PeerMailbox::kPending; ++i) ASSERT_TRUE(own->try_post(0, {}));
  EXPECT_FALSE(own->try_post(0, {}));
  ASSERT_TRUE(own->try_take(0).has_value());
  EXPECT_TRUE(own->try_post(0, {}));
  EXPECT_FALSE(own->try_post(0, {}));
}

TEST(PeerMailbox, CarriesManyDestinationsBetweenThreads) {
  constexpr std::int64_t messages = 200000;
  const auto own = PeerMailbox::create("tessera-test", 1);
  std::jthread sender([&] {
    const auto mailbox = PeerMailbox::open(own->name(), 1);
    for (std::int64_t i = 0; i < messages;) {
      const auto taken = mailbox->try_take(0);
      if (!taken) {
        std::this_thread::yield();
        continue;
      }
      ASSERT_EQ(taken->offset, i);
      ASSERT_EQ(taken->bytes, -i);
      ++i;
    }
  });
  for (std::int64_t i = 0; i < messages; ++i)
    while (!own->try_post(0, {.offset = i, .bytes = -i})) std::this_thread::yield();
}

struct Message {
  int peer = 0;
  std::int64_t number = 0;
};

// Acts as one of three ranks that exchange messages, more than a mailbox holds. Returns the numbers of the taken
// messages by peer.
std::vector<std::vector<std::int64_t>> exchange(int rank, std::vector<std::unique_ptr<PeerMailbox>>& mailboxes,
                                                std::int64_t messages) {
  std::vector<Message> all;
  for (std::int64_t i = 0; i < messages; ++i)
    for (const int peer : {(rank + 1) % 3, (rank + 2) % 3}) all.push_back({peer, i});
  PeerQueues<Message> receives(all, 3), sends(all, 3);
  std::vector<std::vector<std::int64_t>> taken(3);
  const auto mailbox = [&](int peer) -> PeerMailbox& { return *mailboxes[static_cast<std::size_t>(peer)]; };
  exchange_alternately(
      receives, sends,
      [&](const Message& one) { return mailbox(rank).try_post(one.peer, {.offset = one.number, .bytes = rank}); },
      [&](const Message& one) {
        const auto target = mailbox(one.peer).try_take(rank);
        if (!target) return false;
        EXPECT_EQ(target->bytes, one.peer);
        taken[static_cast<std::size_t>(one.peer)].push_back(target->offset);
        return true;
      },
      [] { std::this_thread::yield(); });
  return taken;
}

TEST(PeerQueues, MoreMessagesThanMailboxesHoldPassInBothDirections) {
  constexpr auto kMessages = static_cast<std::int64_t>(3 * PeerMailbox::kPending);
  std::vector<std::unique_ptr<PeerMailbox>> mailboxes;
  for (int rank = 0; rank < 3; ++rank) mailboxes.push_back(PeerMailbox::create("tessera-test", 3));
  std::vector<std::vector<std::vector<std::int64_t>>> taken(3);
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 3; ++rank)
      ranks.emplace_back([&, rank] { taken[static_cast<std::size_t>(rank)] = exchange(rank, mailboxes, kMessages); });
  }
  for (std::size_t rank = 0; rank < 3; ++rank)
    for (std::size_t peer = 0; peer < 3; ++peer) {
      const std::vector<std::int64_t>& numbers = taken[rank][peer];
      ASSERT_EQ(static_cast<std::int64_t>(numbers.size()), rank == peer ? 0 : kMessages);
      for (std::size_t i = 0; i < numbers.size(); ++i) ASSERT_EQ(numbers[i], static_cast<std::int64_t>(i));
    }
}

TEST(PeerQueues, APeerThatIsNotReadyDoesNotDelayOthers) {
  PeerQueues<Message> queues({{0, 1}, {1, 2}, {0, 3}, {1, 4}}, 2);
  std::vector<std::int64_t> handled;
  const auto handle = [&](const Message& one) {
    if (one.peer == 0) return false;
    handled.push_back(one.number);
    return true;
  };
  EXPECT_TRUE(queues.advance(handle));
  EXPECT_FALSE(queues.advance(handle));
  EXPECT_EQ(handled, (std::vector<std::int64_t>{2, 4}));
  EXPECT_FALSE(queues.empty());
  std::vector<Message> others;
  queues.move_out([](int peer) { return peer == 1; }, others);
  EXPECT_TRUE(queues.empty());
  ASSERT_EQ(others.size(), 2U);
  EXPECT_EQ(others[1].number, 3);
}

// The name comes from another process.
TEST(PeerMailbox, NamesOfOtherThingsAreRefused) {
  for (const std::string& name : {std::string(), std::string("tessera"), std::string("/../tessera"),
                                  std::string("/a\0b", 4), "/" + std::string(1 << 20, 'x')})
    EXPECT_THAT([&] { PeerMailbox::open(name, 2); },
                testing::ThrowsMessage<Error>(testing::HasSubstr("expected the name of shared memory")));
}

TEST(PeerMailbox, IsNotFoundAfterUnlinkAndRefusesOtherSizes) {
  const auto own = PeerMailbox::create("tessera-test", 2);
  EXPECT_THROW(PeerMailbox::open(own->name(), 3), Error);
  own->unlink();
  try {
    PeerMailbox::open(own->name(), 2);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr(own->name()), testing::HasSubstr("shm_open")));
  }
}

}  // namespace
}  // namespace tessera::comm
