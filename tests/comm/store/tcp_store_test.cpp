// The store of processes, over this machine's own network.
#include "tessera/comm/tcp_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "tessera/comm/launcher.h"
#include "tests/comm/store_cases.h"

namespace tessera::comm {
namespace {

using std::chrono::seconds;

// Rank 0, with a port of its own.
Launch host_of(int ranks) {
  const ReservedPort port;
  return {.rank = 0, .size = ranks, .port = port.port(), .socket = dup(port.socket())};
}

// Rank 1's connection, which keeps the host's alive.
std::shared_ptr<Store> make_pair_of_stores() {
  const Launch host = host_of(2);
  Launch client = host;
  client.rank = 1;
  const auto server = make_tcp_store(host, seconds(30));
  auto store = make_tcp_store(client, seconds(30));
  return {store.get(), [server, store](Store*) {}};
}
INSTANTIATE_TEST_SUITE_P(Tcp, Stores, testing::Values(StoreKind{"tcp", make_pair_of_stores}));

TEST(TcpStore, SaysWhereItFoundNothing) {
  quieten_store();
  const ReservedPort nobodys;
  const Launch client{.rank = 1, .size = 2, .port = nobodys.port()};
  try {
    make_tcp_store(client, seconds(1));
    FAIL() << "reached a store that is not there";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("127.0.0.1:" + std::to_string(client.port) + ", rank 1"),
              std::string::npos)
        << error.what();
  }
}

TEST(TcpStore, TheLauncherMayHostIt) {
  const Launch agent = host_of(1);
  const auto server = make_tcp_store(agent, seconds(30));
  Launch rank = agent;
  rank.hosts_store = true;
  make_tcp_store(rank, seconds(30))->set("key", "from rank 0");
  EXPECT_EQ(server->find("key"), "from rank 0");
}

TEST(TcpStore, ALostHostIsAnError) {
  const Launch host = host_of(2);
  Launch client = host;
  client.rank = 1;
  auto server = make_tcp_store(host, seconds(30));
  const auto store = make_tcp_store(client, seconds(30));
  store->set("key", "value");
  server.reset();
  EXPECT_THROW(store->find("key"), Error);
}

}  // namespace
}  // namespace tessera::comm
