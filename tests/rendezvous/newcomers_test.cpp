// Tests that rank 0 accepts its ranks, and that other programs take neither its descriptors nor its time.
#include "tessera/rendezvous/newcomers.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <chrono>
#include <cstring>
#include <future>
#include <map>
#include <thread>

#include "tessera/rendezvous/run_identity.h"
#include "tests/rendezvous/listening.h"

namespace tessera::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kLong{30};

Socket listen_on_loopback() {
  Socket listener = bind_socket(Interfaces::loopback, 0);
  listen(listener.get(), 64);
  fcntl(listener.get(), F_SETFL, O_NONBLOCK);
  return listener;
}

// Connects as any program of this host can.
Socket connect_to(int port) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  EXPECT_EQ(connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return socket;
}

void send_text(const Socket& socket, std::string_view text) {
  ASSERT_EQ(send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
}

// The ranks of a run, and rank 0's port.
struct TestedRun {
  explicit TestedRun(int ranks, const NewcomerLimits& limits = {}) : TestedRun(listen_on_loopback(), ranks, limits) {}
  TestedRun(Socket listener, int ranks, const NewcomerLimits& limits)
      : port{.host = "127.0.0.1",
             .port = port_of(listener),
             .handshake = {.hello = draw_identity(), .welcome = draw_identity()}},
        newcomers(std::move(listener), port.handshake, ranks, limits) {}

  // Serves until `is_done` returns true. Returns false after a long time.
  template <typename Condition>
  bool serve_until(Condition is_done) {
    for (const auto end = steady_clock::now() + kLong; steady_clock::now() < end;) {
      for (auto& [rank, socket] : newcomers.serve()) identified[rank] = std::move(socket);
      if (is_done()) return true;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return false;
  }
  // Serves until rank 0 closes the connection.
  bool closes(const Socket& socket) {
    char byte = 0;
    return serve_until([&] {
      const ssize_t count = recv(socket.get(), &byte, 1, MSG_DONTWAIT);
      return count == 0 || (count < 0 && errno != EAGAIN);
    });
  }
  std::string hello(std::int32_t rank) const {
    std::string text = port.handshake.hello;
    return text.append(reinterpret_cast<const char*>(&rank), sizeof rank);
  }
  std::future<Socket> connect(int rank) const {
    return std::async(std::launch::async, [this, rank] { return connect_to_rank_0(port, rank, kLong); });
  }

  const Rank0Port port;
  Newcomers newcomers;
  std::map<int, Socket> identified;
};

TEST(Newcomers, EveryRankIsAcceptedOnceAndThenThePortIsClosed) {
  TestedRun run(3);
  auto first = run.connect(1), second = run.connect(2);
  EXPECT_TRUE(run.serve_until([&] { return !run.newcomers.is_open(); }));
  EXPECT_TRUE(first.get());
  EXPECT_TRUE(second.get());
  EXPECT_EQ(run.identified.size(), 2u);
  EXPECT_TRUE(listening_sockets().empty());
  EXPECT_FALSE(connect_to_rank_0(run.port, 1, kLong));
  std::vector<pollfd> files;
  run.newcomers.add_files(files);
  EXPECT_TRUE(files.empty());
}

TEST(Newcomers, AHelloMayArriveInParts) {
  TestedRun run(2);
  const Socket rank = connect_to(run.port.port);
  const std::string hello = run.hello(1);
  for (const char byte : hello) {
    EXPECT_TRUE(run.newcomers.is_open());
    send_text(rank, std::string(1, byte));
    run.serve_until([] { return true; });
  }
  EXPECT_TRUE(run.serve_until([&] { return run.identified.contains(1); }));
}

TEST(Newcomers, OtherProgramsAreRefused) {
  TestedRun run(3);
  TestedRun other(3);
  EXPECT_TRUE(run.serve_until([] { return true; }));
  for (const std::string& text : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(4096, '\0'), other.hello(1),
                                  run.hello(0), run.hello(3), run.hello(-1), std::string("x")}) {
    const Socket stranger = connect_to(run.port.port);
    send_text(stranger, text);
    EXPECT_TRUE(run.closes(stranger)) << text;
  }
  auto rank = run.connect(1);
  EXPECT_TRUE(run.serve_until([&] { return run.identified.contains(1); }));
  const Socket second = connect_to(run.port.port);
  send_text(second, run.hello(1));
  EXPECT_TRUE(run.closes(second)) << "two connections of a rank";
  EXPECT_TRUE(rank.get());
  EXPECT_EQ(run.identified.size(), 1u);
}

TEST(Newcomers, SilentConnectionsAreClosedAfterTheLimit) {
  TestedRun run(3, {.identify = milliseconds(50)});
  const Socket silent = connect_to(run.port.port), half = connect_to(run.port.port);
  send_text(half, run.hello(1).substr(0, 10));
  EXPECT_TRUE(run.closes(silent));
  EXPECT_TRUE(run.closes(half));
  EXPECT_TRUE(run.newcomers.is_open());
  TestedRun late(2, {.open = milliseconds(50)});
  EXPECT_TRUE(late.serve_until([&] { return !late.newcomers.is_open(); }));
}

TEST(Newcomers, NoMoreConnectionsAreOpenThanRanksAreMissing) {
  TestedRun run(3);
  const std::size_t before = open_files().size();
  std::vector<Socket> strangers;
  for (int i = 0; i < 50; ++i) strangers.push_back(connect_to(run.port.port));
  for (std::size_t i = 0; i + 2 < strangers.size(); ++i) EXPECT_TRUE(run.closes(strangers[i])) << i;
  EXPECT_EQ(open_files().size(), before + strangers.size() + 2);
  auto rank = run.connect(2);
  EXPECT_TRUE(run.serve_until([&] { return run.identified.contains(2); }));
  EXPECT_TRUE(rank.get());
}

// Without descriptors, accept fails while the connection stays ready. A loop that polls must not spin.
TEST(Newcomers, TheListenerIsNotPolledForAMomentIfNoDescriptorIsLeft) {
  TestedRun run(2);
  const Socket rank = connect_to(run.port.port);
  send_text(rank, run.hello(1));
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit none{.rlim_cur = 0, .rlim_max = limit.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  EXPECT_TRUE(run.newcomers.serve().empty());
  std::vector<pollfd> files;
  run.newcomers.add_files(files);
  setrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_TRUE(files.empty());
  EXPECT_TRUE(run.serve_until([&] { return run.identified.contains(1); }));
}

// A port of rank 0 may now belong to another program, or an address may be that of another host.
TEST(Newcomers, ARankDoesNotMistakeAnotherProgramForRank0) {
  const Socket silent = listen_on_loopback();
  Rank0Port port{.host = "127.0.0.1", .port = port_of(silent), .handshake = {draw_identity(), draw_identity()}};
  EXPECT_FALSE(connect_to_rank_0(port, 1, milliseconds(50)));
  std::thread answers([&] {
    fcntl(silent.get(), F_SETFL, 0);
    const Socket earlier(accept(silent.get(), nullptr, nullptr));  // the connection of the attempt above
    const Socket connection(accept(silent.get(), nullptr, nullptr));
    send_text(connection, std::string(32, 'x'));
  });
  EXPECT_FALSE(connect_to_rank_0(port, 1, milliseconds(300)));
  answers.join();
}

}  // namespace
}  // namespace tessera::rendezvous
