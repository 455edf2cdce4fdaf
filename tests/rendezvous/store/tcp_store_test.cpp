// Tests the store of processes, over this machine's network.
#include "tessera/rendezvous/tcp_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/rendezvous/launcher.h"
#include "tests/rendezvous/store_cases.h"

namespace tessera::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr StoreLimits kPatient{.connect = seconds(30), .answer = seconds(30)};
constexpr StoreLimits kShort{.connect = seconds(1), .answer = seconds(1)};

// Returns the launch of rank 0, with its own port.
Launch host_of(int ranks) {
  const ReservedPort port;
  return {.rank = 0, .size = ranks, .port = port.port(), .socket = dup(port.socket())};
}

// Returns rank 1's connection, which also keeps rank 0's alive.
std::shared_ptr<Store> make_pair_of_stores() {
  const Launch host = host_of(2);
  Launch client = host;
  client.rank = 1;
  const auto server = make_tcp_store(host, kPatient);
  auto store = make_tcp_store(client, kPatient);
  return {store.get(), [server, store](Store*) {}};
}
INSTANTIATE_TEST_SUITE_P(Tcp, Stores, testing::Values(StoreKind{"tcp", make_pair_of_stores}));

TEST(TcpStore, ErrorsContainTheAddress) {
  disable_store_log();
  const ReservedPort nobodys;
  const Launch client{.rank = 1, .size = 2, .port = nobodys.port()};
  try {
    make_tcp_store(client, kShort);
    FAIL() << "connected, but no store exists";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("127.0.0.1:" + std::to_string(client.port) + ", rank 1"),
              std::string::npos)
        << error.what();
  }
}

TEST(TcpStore, TheLauncherMayHostIt) {
  const Launch agent = host_of(1);
  const auto server = make_tcp_store(agent, kPatient);
  Launch rank = agent;
  rank.hosts_store = true;
  make_tcp_store(rank, kPatient)->set("key", "from rank 0");
  EXPECT_EQ(server->find("key"), "from rank 0");
}

TEST(TcpStore, ALostHostIsAnError) {
  const Launch host = host_of(2);
  Launch client = host;
  client.rank = 1;
  auto server = make_tcp_store(host, kPatient);
  const auto store = make_tcp_store(client, kPatient);
  store->set("key", "value");
  server.reset();
  EXPECT_THROW(store->find("key"), Error);
}

// Runs rank 0 in a separate process, which can be stopped.
class StoppedHost : public testing::Test {
 protected:
  StoppedHost() : launch_{.rank = 0, .size = 2, .port = port_.port(), .socket = dup(port_.socket())} {
    host_ = fork();
    if (host_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const auto server = make_tcp_store(launch_, kPatient);
      for (;;) pause();
    }
    launch_.rank = 1;
  }
  ~StoppedHost() override {
    kill(host_, SIGKILL);
    waitpid(host_, nullptr, 0);
    close(launch_.socket);
  }
  void stop() const {
    kill(host_, SIGSTOP);
    waitpid(host_, nullptr, WUNTRACED);
  }
  // Checks that `call` fails within the limit while the host is stopped, and that later calls fail at once.
  template <typename Call>
  void expect_limit(Call call, milliseconds limit = kLimits.answer) {
    auto store = make_tcp_store(launch_, kLimits);
    store->set("key", "value");
    EXPECT_EQ(store->find("key"), "value");
    stop();
    auto begin = steady_clock::now();
    const std::string text = error_of([&] { call(*store); });
    EXPECT_THAT(text, testing::HasSubstr(fmt::format("no answer within {} ms", limit.count())));
    EXPECT_LT(steady_clock::now() - begin, limit * 2);
    begin = steady_clock::now();
    EXPECT_EQ(error_of([&] { store->find("key"); }), text);
    EXPECT_EQ(error_of([&] { store->set("key", "new"); }), text);
    store.reset();
    EXPECT_LT(steady_clock::now() - begin, milliseconds(1000));
    kill(host_, SIGCONT);
  }
  template <typename Call>
  static std::string error_of(Call call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  static constexpr StoreLimits kLimits{.connect = milliseconds(1500), .answer = milliseconds(600)};
  const ReservedPort port_;
  Launch launch_;
  pid_t host_ = -1;
};

TEST_F(StoppedHost, EveryCallHasALimit) {
  expect_limit([](Store& store) { store.find("key"); });
  expect_limit([](Store& store) { store.add("sum", 1); });
  expect_limit([](Store& store) { store.erase("key"); });
  expect_limit([](Store& store) { store.get("other", seconds(60)); });
  expect_limit([](Store& store) {
    for (int i = 0; i < 100; ++i) store.set("large", std::string(1'000'000, 'x'));  // more than the kernel buffers
  });
  expect_limit([](Store& store) { store.connect(); }, kLimits.connect);
}

TEST_F(StoppedHost, OnlyNewConnectionsWorkAfterItResumes) {
  const auto store = make_tcp_store(launch_, kLimits);
  store->set("key", "value");
  store->set("other", "another");
  EXPECT_EQ(store->find("key"), "value");
  stop();
  EXPECT_THROW(store->find("key"), Error);
  kill(host_, SIGCONT);
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_THROW(store->find("other"), Error);
  EXPECT_EQ(make_tcp_store(launch_, kLimits)->find("other"), "another");
}

// The kernel accepts connections to a host that never accepts them itself.
TEST(TcpStore, AHostThatNeverAnswersIsAnError) {
  const ReservedPort port;
  ASSERT_EQ(listen(port.socket(), 16), 0);
  const auto begin = steady_clock::now();
  EXPECT_THROW(make_tcp_store({.rank = 1, .size = 2, .port = port.port()}, kShort), Error);
  EXPECT_LT(steady_clock::now() - begin, seconds(2));
}

}  // namespace
}  // namespace tessera::rendezvous
