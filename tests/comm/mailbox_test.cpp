#include "tessera/comm/peer_mailbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

TEST(PeerMailbox, KeepsTheOrderOfEachSenderApart) {
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

TEST(PeerMailbox, IsFullAtItsLimitAndGoesOnWhenRead) {
  const auto own = PeerMailbox::create("tessera-test", 1);
  for (std::size_t i = 0; i < PeerMailbox::kPending; ++i) ASSERT_TRUE(own->try_post(0, {}));
  EXPECT_FALSE(own->try_post(0, {}));
  ASSERT_TRUE(own->try_take(0).has_value());
  EXPECT_TRUE(own->try_post(0, {}));
  EXPECT_FALSE(own->try_post(0, {}));
}

TEST(PeerMailbox, CarriesManyBetweenThreads) {
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

TEST(PeerMailbox, IsNotFoundOnceUnlinkedAndRefusesOtherSizes) {
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
