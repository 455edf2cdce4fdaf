// Tests how ranks report failures to each other, and that a store that does not answer does not block them.
#include "tessera/rendezvous/boards/failure_exchange.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "tessera/rendezvous/limited_store.h"
#include "tests/rendezvous/silent_store.h"

namespace tessera::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::optional<std::string> await_cause(const FailureExchange& exchange) {
  const auto limit = steady_clock::now() + std::chrono::seconds(30);
  while (!exchange.received() && steady_clock::now() < limit) std::this_thread::sleep_for(milliseconds(2));
  return exchange.received();
}

TEST(FailureExchange, ReportsReturnTheAnswersOfPeers) {
  const auto store = make_memory_store();
  FailureExchange first(store->connect(), 0), second(store->connect(), 1);
  EXPECT_EQ(first.received(), std::nullopt);
  auto answers = std::async(std::launch::async, [&] {
    return first.report({.states = {{"0.0", "at all_reduce #3"}}, .cause = "a cause", .group = "0.0", .peers = {1, 2}});
  });
  EXPECT_EQ(await_cause(second), "a cause");
  EXPECT_EQ(second.report({.states = {{"0.0", "at barrier #4"}, {"1.0", "at rest"}}}), "");
  EXPECT_EQ(answers.get(), "rank 1: at barrier #4; rank 2: no answer");
  // The first cause is kept.
  EXPECT_EQ(second.report({.states = {}, .cause = "a later cause", .group = "0.0", .peers = {0}}),
            "rank 0: at all_reduce #3");
  FailureExchange third(store->connect(), 2);
  EXPECT_EQ(await_cause(third), "a cause");
}

// Another program may have set the values of the store.
TEST(FailureExchange, TextsOfOtherRanksAreCutAndEscaped) {
  const auto store = make_memory_store();
  store->set("state/0.0/1", "first\nsecond" + std::string(1 << 20, 'x'));
  FailureExchange exchange(store->connect(), 0);
  const std::string answers = exchange.report({.states = {}, .cause = "a cause", .group = "0.0", .peers = {1}});
  EXPECT_TRUE(answers.starts_with("rank 1: first\\x0asecondxx")) << answers.substr(0, 100);
  EXPECT_LT(answers.size(), 5000u);
  store->set("failed", std::string(1 << 20, '\x1B'));
  FailureExchange other(store->connect(), 1);
  const auto cause = await_cause(other);
  ASSERT_TRUE(cause);
  EXPECT_TRUE(cause->starts_with("\\x1b\\x1b"));
  EXPECT_LT(cause->size(), 100'000u);
}

TEST(FailureExchange, ReportsEndIfTheStoreDoesNotAnswer) {
  const auto silence = std::make_shared<Silence>();
  const auto open = [silence] { return std::make_shared<SilentStore>(make_memory_store(), silence); };
  const auto begin = steady_clock::now();
  {
    // The time limit of the store is longer than that of the exchange.
    FailureExchange exchange(
        make_limited_store(open, {.connect = milliseconds(9000), .answer = milliseconds(3000)}, "here"), 0);
    silence->begin();
    EXPECT_EQ(exchange.report({.states = {{"0.0", "at rest"}}, .cause = "a cause", .group = "0.0", .peers = {1}}),
              "the store does not answer");
    EXPECT_LT(steady_clock::now() - begin, milliseconds(2900));
    EXPECT_EQ(exchange.received(), std::nullopt);
  }
  EXPECT_LT(steady_clock::now() - begin, milliseconds(6000));
  silence->end();
}

TEST(FailureExchange, ReportsStateThatTheStoreCannotBeReached) {
  const auto silence = std::make_shared<Silence>();
  const auto open = [silence] { return std::make_shared<SilentStore>(make_memory_store(), silence); };
  FailureExchange exchange(
      make_limited_store(open, {.connect = milliseconds(9000), .answer = milliseconds(100)}, "here"), 0);
  silence->begin();
  EXPECT_EQ(exchange.report({.states = {{"0.0", "at rest"}}, .cause = "a cause", .group = "0.0", .peers = {1}}),
            "the store cannot be reached");
  silence->end();
}

}  // namespace
}  // namespace tessera::rendezvous
