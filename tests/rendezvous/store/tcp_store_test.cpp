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
#include "tessera/rendezvous/run_identity.h"
#include "tessera/rendezvous/socket.h"
#include "tests/rendezvous/listening.h"
#include "tests/rendezvous/store_cases.h"
#include "tests/rendezvous/stranger/stranger.h"

namespace tessera::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr StoreLimits kPatient{.connect = seconds(30), .answer = seconds(30)};
constexpr StoreLimits kShort{.connect = seconds(1), .answer = seconds(1)};

// Returns the launch of rank 0, with its own port.
Launch host_of(int ranks) {
  Socket socket = bind_socket(Interfaces::loopback, 0);
  return {.rank = 0, .size = ranks, .port = port_of(socket), .socket = socket.release()};
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
  const Socket nobodys = bind_socket(Interfaces::loopback, 0);
  const Launch client{.rank = 1, .size = 2, .port = port_of(nobodys)};
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

int free_port() {
  return port_of(bind_socket(Interfaces::loopback, 0));
}

// Returns the variables of a rank of two, which a launcher sets on one host, for every launcher. `port` is the store's.
std::vector<Variables> launchers_on_one_host(int rank, int port) {
  const std::string number = std::to_string(rank);
  std::vector<Variables> all{
      {{"RANK", number}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", number}, {"MASTER_ADDR", "localhost"}},
      {{"RANK", number}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", number}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "vm"}},
      {{"SLURM_PROCID", number},
       {"SLURM_STEP_NUM_TASKS", "2"},
       {"SLURM_LOCALID", number},
       {"SLURM_STEP_NUM_NODES", "1"},
       {"SLURM_JOB_NODELIST", "vm"},
       {"SLURM_JOB_ID", "12"},
       {"SLURM_STEP_ID", "3"}},
      {{"OMPI_COMM_WORLD_RANK", number},
       {"OMPI_COMM_WORLD_SIZE", "2"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", number},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
       {"PMIX_NAMESPACE", "7"}},
      {{"PMI_RANK", number}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", number}, {"MPI_LOCALNRANKS", "2"}}};
  for (Variables& variables : all) variables["MASTER_PORT"] = std::to_string(port);
  return all;
}

TEST(TcpStore, ListensOnlyOnLoopbackIfAllRanksAreOnOneHost) {
  for (std::size_t launcher = 0; launcher < launchers_on_one_host(0, 1).size(); ++launcher) {
    const int port = free_port();
    const Launch host = read_launch(launchers_on_one_host(0, port)[launcher]);
    const Launch other = read_launch(launchers_on_one_host(1, port)[launcher]);
    const auto server = make_tcp_store(host, kPatient), client = make_tcp_store(other, kPatient);
    const Listening expected{.is_loopback = true, .port = port};
    EXPECT_EQ(listening_sockets(), std::vector{expected}) << launcher;
    join_run(server, host, kPatient.connect)->set("key", "value");
    EXPECT_EQ(join_run(client, other, kPatient.connect)->find("key"), "value") << launcher;
  }
  EXPECT_EQ(listening_sockets().size(), 0u);
}

TEST(TcpStore, ListensOnAllInterfacesIfRanksMayBeOnOtherHosts) {
  const int port = free_port();
  const auto server =
      make_tcp_store({.rank = 0, .size = 2, .address = "127.0.0.1", .port = port, .is_one_host = false}, kPatient);
  const Listening expected{.is_loopback = false, .port = port};
  EXPECT_EQ(listening_sockets(), std::vector{expected});
}

// Two jobs on one port, in every order of their ranks.
TEST(TcpStore, ASecondRunOnThePortIsRefused) {
  const int port = free_port();
  const Launch host{.rank = 0, .size = 2, .port = port, .run = "job 7"};
  const Launch other{.rank = 0, .size = 2, .port = port, .run = "job 8"};
  const auto names_the_port = [](const char* problem) {
    return testing::ThrowsMessage<InputError>(
        testing::AllOf(testing::HasSubstr(problem), testing::HasSubstr("set MASTER_PORT to a free port")));
  };
  const auto server = join_run(make_tcp_store(host, kPatient), host, kPatient.connect);
  EXPECT_THAT([&] { make_tcp_store(other, kPatient); }, names_the_port("rank 0: the port is in use"));
  Launch everywhere = other, second = other;
  everywhere.is_one_host = false;
  EXPECT_THAT([&] { make_tcp_store(everywhere, kPatient); }, names_the_port("rank 0: the port is in use"));
  second.rank = 1;
  const auto client = make_tcp_store(second, kPatient);
  EXPECT_THAT([&] { join_run(client, second, kPatient.connect); }, names_the_port("found the run 'job 7 of 2 ranks'"));
}

// A rank that this program starts inherits the socket of its port.
class ClosedPort : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(StorePort, ClosedPort, testing::Bool(),
                         [](const auto& inherited) { return inherited.param ? "inherited" : "own"; });

TEST_P(ClosedPort, AcceptsNoConnectionAfterAllRanksHaveConnected) {
  make_pair_of_stores();  // the first store opens files that stay open
  Launch host = GetParam() ? host_of(2) : Launch{.rank = 0, .size = 2, .port = free_port()};
  const int port = host.port;
  Launch other{.rank = 1, .size = 2, .port = port};
  const auto before = open_files().size();
  {
    StorePort port_of_host(host), port_of_other(other);
    const auto server = make_tcp_store(host, kPatient), client = make_tcp_store(other, kPatient);
    port_of_host.close_when_all_connected(server);
    std::this_thread::sleep_for(milliseconds(50));
    EXPECT_TRUE(Stranger::is_answered(port, seconds(30)));
    port_of_other.close_when_all_connected(client);
    const auto end = steady_clock::now() + seconds(30);
    while (Stranger::is_answered(port, milliseconds(200)) && steady_clock::now() < end) continue;
    EXPECT_LT(steady_clock::now(), end);
    // The connections of the ranks still work, and the port stays taken.
    server->set("key", "value");
    EXPECT_EQ(client->find("key"), "value");
    EXPECT_THROW(make_tcp_store({.rank = 0, .size = 2, .port = port}, kPatient), InputError);
    const Listening expected{.is_loopback = true, .port = port};
    EXPECT_EQ(listening_sockets(), std::vector{expected});
  }
  EXPECT_EQ(open_files().size(), GetParam() ? before - 1 : before);
  EXPECT_TRUE(bind_socket(Interfaces::loopback, port));
}

TEST(TcpStore, AValueThatIsTooLongIsRefused) {
  const auto store = make_pair_of_stores();
  store->set("key", std::string(Store::kLongestValue, 'x'));
  EXPECT_EQ(store->find("key")->size(), Store::kLongestValue);
  EXPECT_THAT([&] { store->set("key", std::string(Store::kLongestValue + 1, 'x')); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("expected at most 8388608 bytes, got 8388609")));
}

// Runs rank 0 in a separate process, which can be stopped.
class StoppedHost : public testing::Test {
 protected:
  StoppedHost() : launch_{.rank = 0, .size = 2, .port = port_of(port_), .socket = dup(port_.get())} {
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
  const Socket port_ = bind_socket(Interfaces::loopback, 0);
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

// The host sends its answers to a closed connection. SIGPIPE must not end it.
TEST_F(StoppedHost, AClientThatLeavesBeforeItsAnswersDoesNotEndTheHost) {
  make_tcp_store(launch_, kPatient)->set("key", "value");
  stop();
  for (int i = 0; i < 10; ++i) Stranger::ask_and_leave(launch_.port);
  kill(host_, SIGCONT);
  EXPECT_EQ(make_tcp_store(launch_, kPatient)->find("key"), "value");
  EXPECT_EQ(waitpid(host_, nullptr, WNOHANG), 0);
}

// The kernel accepts connections to a host that never accepts them itself.
TEST(TcpStore, AHostThatNeverAnswersIsAnError) {
  const Socket port = bind_socket(Interfaces::loopback, 0);
  ASSERT_EQ(listen(port.get(), 16), 0);
  const auto begin = steady_clock::now();
  EXPECT_THROW(make_tcp_store({.rank = 1, .size = 2, .port = port_of(port)}, kShort), Error);
  EXPECT_LT(steady_clock::now() - begin, seconds(2));
}

}  // namespace
}  // namespace tessera::rendezvous
