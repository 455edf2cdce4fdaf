// Tests that every kind of store passes. Instantiate the tests with a function that makes a store.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/rendezvous/store.h"

namespace tessera::rendezvous {

struct StoreKind {
  std::string name;
  std::function<std::shared_ptr<Store>()> make;
};
class Stores : public testing::TestWithParam<StoreKind> {};

TEST_P(Stores, ReturnTheValuesThatWereSet) {
  const auto store = GetParam().make();
  const std::string bytes("\0\xFF a", 4), large(200'000, 'x');
  EXPECT_EQ(store->find("key"), std::nullopt);
  store->set("key", bytes);
  store->set("large", large);
  EXPECT_EQ(store->find("key"), bytes);
  EXPECT_EQ(store->connect()->find("large"), large);
  store->set("key", "new");
  EXPECT_EQ(store->get("key", std::chrono::milliseconds(0)), "new");
  store->erase("key");
  EXPECT_EQ(store->find("key"), std::nullopt);
}

TEST_P(Stores, WaitUpToALimit) {
  const auto store = GetParam().make(), other = store->connect();
  EXPECT_EQ(store->wait_for("late", std::chrono::milliseconds(20)), std::nullopt);
  EXPECT_THROW(store->get("late", std::chrono::milliseconds(1)), Error);
  std::thread setter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    other->set("late", "here");
  });
  // Other threads can use the connection while a thread waits.
  std::thread counter([&] { EXPECT_EQ(store->add("calls", 1), 1); });
  EXPECT_EQ(store->wait_for("late", std::chrono::seconds(30)), "here");
  setter.join();
  counter.join();
}

TEST_P(Stores, AddOverAllConnections) {
  const auto store = GetParam().make();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([own = store->connect()] {
      for (int i = 0; i < 25; ++i) own->add("sum", 2);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store->add("sum", 0), 200);
}

TEST_P(Stores, SeparatePrefixes) {
  const auto store = GetParam().make();
  const auto one = make_prefix_store(store, "one/"), two = make_prefix_store(store, "two/");
  one->set("key", "1");
  EXPECT_EQ(two->find("key"), std::nullopt);
  EXPECT_EQ(one->connect()->find("key"), "1");
  EXPECT_EQ(store->find("one/key"), "1");
  EXPECT_EQ(one->add("sum", 3), 3);
  EXPECT_EQ(two->add("sum", 4), 4);
}

}  // namespace tessera::rendezvous
