// Tests time limits of a store that stops answering.
#include "tessera/rendezvous/limited_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <future>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/rendezvous/boards/store_board.h"
#include "tests/base/stopped_process.h"
#include "tests/rendezvous/silent_store.h"

namespace tessera::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::HasSubstr;

constexpr milliseconds kLimit{300}, kLate{5000};

template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

milliseconds since(steady_clock::time_point begin) {
  return std::chrono::duration_cast<milliseconds>(steady_clock::now() - begin);
}

class LimitedStores : public testing::Test {
 protected:
  ~LimitedStores() override { silence_->end(); }
  std::shared_ptr<Store> make(milliseconds limit = kLimit) {
    const auto open = [memory = memory_, silence = silence_] { return std::make_shared<SilentStore>(memory, silence); };
    return make_limited_store(open, {.connect = limit, .answer = limit}, "here");
  }
  // Checks that `call` fails at the limit on a new connection while the store does not answer. Later calls then fail at
  // once.
  template <typename Call>
  void expect_limit(const std::string& what, Call call) {
    auto store = make();
    silence_->begin();
    auto begin = steady_clock::now();
    const std::string text = error_of([&] { call(*store); });
    EXPECT_EQ(text, "store: here: " + what + ": no answer within 300 ms");
    EXPECT_GE(since(begin), kLimit);
    EXPECT_LT(since(begin), kLate);
    begin = steady_clock::now();
    EXPECT_EQ(error_of([&] { store->find("other"); }), text);
    EXPECT_EQ(error_of([&] { store->set("other", ""); }), text);
    EXPECT_EQ(error_of([&] { store->add("other", 1); }), text);
    EXPECT_EQ(error_of([&] { store->erase("other"); }), text);
    EXPECT_EQ(error_of([&] { store->wait_for("other", milliseconds(10'000)); }), text);
    EXPECT_EQ(error_of([&] { store->connect(); }), text);
    store.reset();
    EXPECT_LT(since(begin), kLimit);
    silence_->end();
  }
  const std::shared_ptr<Silence> silence_ = std::make_shared<Silence>();
  const std::shared_ptr<Store> memory_ = make_memory_store();
};

TEST_F(LimitedStores, EveryCallHasALimitAndLaterCallsFailAtOnce) {
  expect_limit("get 'key'", [](Store& store) { store.find("key"); });
  expect_limit("set 'key'", [](Store& store) { store.set("key", "value"); });
  expect_limit("add 'key'", [](Store& store) { store.add("key", 1); });
  expect_limit("erase 'key'", [](Store& store) { store.erase("key"); });
  expect_limit("get 'key'", [](Store& store) { store.wait_for("key", milliseconds(10'000)); });
  expect_limit("connect", [](Store& store) { store.connect(); });
}

TEST_F(LimitedStores, ConnectingHasALimit) {
  const auto begin = steady_clock::now();
  const auto open = [silence = silence_]() -> std::shared_ptr<Store> {
    silence->wait();
    return make_memory_store();
  };
  silence_->begin();
  EXPECT_EQ(error_of([&] { make_limited_store(open, {.connect = kLimit, .answer = kLate}, "here"); }),
            "store: here: connect: no answer within 300 ms");
  EXPECT_LT(since(begin), kLate);
  EXPECT_EQ(error_of([] {
              make_limited_store([]() -> std::shared_ptr<Store> { throw Error("no host"); }, {kLimit, kLimit}, "here");
            }),
            "no host");
}

TEST_F(LimitedStores, ASlowAnswerGoesToItsCaller) {
  memory_->set("a", "of a");
  memory_->set("b", "of b");
  const auto store = make(milliseconds(30'000));
  silence_->begin();
  auto first = std::async(std::launch::async, [&] { return store->find("a"); });
  auto second = std::async(std::launch::async, [&] { return store->find("b"); });
  std::this_thread::sleep_for(milliseconds(50));
  silence_->end();
  EXPECT_EQ(first.get(), "of a");
  EXPECT_EQ(second.get(), "of b");
}

TEST_F(LimitedStores, TheTimeInWhichTheProcessIsStoppedDoesNotCount) {
  const int code = base::run_with_stop(milliseconds(3000), [&] {
    memory_->set("key", "value");
    const auto store = make(milliseconds(2000));
    silence_->begin();
    std::jthread other([&] {
      raise(SIGSTOP);
      silence_->end();
    });
    return error_of([&] { EXPECT_EQ(store->find("key"), "value"); }) == "no error" ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
}

TEST_F(LimitedStores, ALateAnswerIsDropped) {
  memory_->set("a", "of a");
  memory_->set("b", "of b");
  const auto store = make(), other = store->connect();
  silence_->begin();
  const std::string text = error_of([&] { store->find("a"); });
  EXPECT_THAT(text, HasSubstr("no answer"));
  silence_->end();
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(error_of([&] { store->find("b"); }), text);
    EXPECT_EQ(other->find("b"), "of b");
    std::this_thread::sleep_for(milliseconds(5));
  }
}

TEST_F(LimitedStores, AllWaitingCallsFailTogether) {
  const auto store = make();
  silence_->begin();
  std::vector<std::future<std::string>> errors;
  for (int i = 0; i < 4; ++i)
    errors.push_back(std::async(std::launch::async, [&] { return error_of([&] { store->add("sum", 1); }); }));
  for (auto& error : errors) EXPECT_EQ(error.get(), "store: here: add 'sum': no answer within 300 ms");
  silence_->end();
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_LE(make()->add("sum", 0), 1);  // requests that were still queued are dropped
}

TEST_F(LimitedStores, ABoardEndsIfTheStoreDoesNotAnswer) {
  auto board = make_store_board(make(), 0, 2);
  silence_->begin();
  const auto begin = steady_clock::now();
  board->post("lost");
  EXPECT_EQ(board->read(1), "");
  EXPECT_LT(since(begin), kLimit);
  std::this_thread::sleep_for(milliseconds(20));  // the board's thread calls the store
  board.reset();
  EXPECT_LT(since(begin), kLate);
}

}  // namespace
}  // namespace tessera::rendezvous
