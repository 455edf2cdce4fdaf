#include "tessera/rendezvous/peer_watch.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <utility>

namespace tessera::rendezvous {

// Types of the members of PeerWatch::Impl.
namespace peer_watch {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int file) : file_(file) {}
  Socket(Socket&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  ~Socket() {
    if (file_ >= 0) ::close(file_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int get() const { return file_; }
  explicit operator bool() const { return file_ >= 0; }

 private:
  int file_ = -1;
};

struct Connection {
  Socket socket;
  int rank = -1;         // -1: the hello message has not arrived yet
  std::string received;  // received bytes that are not processed yet
};

}  // namespace peer_watch

namespace {

using peer_watch::Connection, peer_watch::Socket;

using std::chrono::milliseconds;
using WatchClock = std::chrono::steady_clock;

constexpr milliseconds kTogether{200};  // ranks that end within this time after the first are reported together
constexpr milliseconds kStopSeen{100};  // interval between two calls of stop_requested
constexpr milliseconds kStopBefore{
    400};  // if a stop request is older than the end of a rank by this time, the request is the cause of the end
constexpr milliseconds kConnectPeer{2000};
constexpr char kBye = 'b';

// The first bytes on a connection. The token identifies the ranks of this run, so that other connections are refused.
struct Hello {
  std::uint64_t token = 0;
  std::int32_t rank = 0, reserved = 0;
};

std::string own_host() {
  std::array<char, 200> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

void send_all(const Socket& socket, const void* data, std::size_t bytes) {
  // Messages have a few bytes, so they fit into the buffer of the socket. A failure means that the peer has ended.
  [[maybe_unused]] const ssize_t sent = ::send(socket.get(), data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Lets the kernel close the connection if the peer's host does not answer for about half a minute.
void detect_dead_hosts(const Socket& socket) {
  const auto set = [&](int level, int option, int value) {
    ::setsockopt(socket.get(), level, option, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

// Returns a socket that listens on a free port of this host, and the port.
std::pair<Socket, int> listen_anywhere() {
  Socket listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof address;
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  if (!listener || ::bind(listener.get(), plain, sizeof address) != 0 || ::listen(listener.get(), SOMAXCONN) != 0 ||
      ::getsockname(listener.get(), plain, &size) != 0)
    return {};
  return {std::move(listener), ntohs(address.sin_port)};
}

// Returns a connection, or an empty socket if no connection can be made.
Socket connect_to(const std::string& host, const std::string& port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(host == own_host() ? "127.0.0.1" : host.c_str(), port.c_str(), &hints, &found) != 0) return {};
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  ::connect(socket.get(), found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  pollfd ready{.fd = socket.get(), .events = POLLOUT, .revents = 0};
  int error = 1;
  socklen_t size = sizeof error;
  if (!socket || ::poll(&ready, 1, static_cast<int>(kConnectPeer.count())) != 1 ||
      ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0)
    return {};
  detect_dead_hosts(socket);
  return socket;
}

}  // namespace

class PeerWatch::Impl {
 public:
  explicit Impl(Options options) : options_(std::move(options)), wake_(::eventfd(0, EFD_CLOEXEC)) {
    std::string address;
    if (options_.rank == 0 && options_.ranks <= kMaxWatched) address = listen();
    address = options_.share(address);
    if (options_.rank > 0) connect(address);
    if (listener_ || options_.rank == 1) thread_ = std::thread([this] { serve(); });
  }
  ~Impl() { stop(); }

  void leave() {
    stop();
    for (const Connection& connection : connections_) send_all(connection.socket, &kBye, 1);
    connections_.clear();
  }

 private:
  std::string listen() {
    auto [listener, port] = listen_anywhere();
    if (!listener) return "";
    listener_ = std::move(listener);
    token_ = std::random_device()() | (std::uint64_t{std::random_device()()} << 32);
    return fmt::format("{} {} {}", own_host(), port, token_);
  }

  void connect(const std::string& address) {
    const std::size_t host = address.find(' '), port = address.rfind(' ');
    if (address.empty() || port == host) return;
    Socket socket = connect_to(address.substr(0, host), address.substr(host + 1, port - host - 1));
    if (!socket) return;
    const Hello hello{.token = std::stoull(address.substr(port + 1)), .rank = options_.rank};
    send_all(socket, &hello, sizeof hello);
    connections_.push_back({.socket = std::move(socket), .rank = 0});
  }

  void stop() {
    if (!thread_.joinable()) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
    thread_.join();
  }

  void serve() {
    pthread_setname_np(pthread_self(), "peer watch");
    while (!is_reported_ && look()) {
    }
    if (!is_reported_ && !lost_.empty()) report();
  }

  // Waits for events and handles them. Returns false when the watch ends.
  bool look() {
    std::vector<pollfd> files{{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                              {.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const Connection& connection : connections_)
      files.push_back({.fd = connection.socket.get(), .events = POLLIN, .revents = 0});
    const milliseconds limit = lost_.empty() ? kStopSeen : kTogether / 4;
    if (::poll(files.data(), files.size(), static_cast<int>(limit.count())) < 0) return errno == EINTR;
    if (!stop_seen_ && options_.stop_requested && options_.stop_requested()) stop_seen_ = WatchClock::now();
    for (std::size_t i = 0; i < connections_.size(); ++i)
      if (files[i + 2].revents != 0) receive(connections_[i]);
    std::erase_if(connections_, [](const Connection& connection) { return !connection.socket; });
    if (files[1].revents != 0) accept();
    if (!lost_.empty() && WatchClock::now() - first_loss_ > kTogether) report();
    return files[0].revents == 0;
  }

  void accept() {
    Socket socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    detect_dead_hosts(socket);
    connections_.push_back({.socket = std::move(socket)});
  }

  // Reads the bytes that have arrived. Closes the connection if the peer has ended or has left.
  void receive(Connection& connection) {
    std::array<char, 64> bytes{};
    const ssize_t count = ::recv(connection.socket.get(), bytes.data(), bytes.size(), 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count > 0) {
      connection.received.append(bytes.data(), static_cast<std::size_t>(count));
      if (connection.rank < 0 && !identify(connection)) connection.socket = Socket();
      if (connection.rank >= 0 && connection.received.find(kBye) != std::string::npos) connection.socket = Socket();
      return;
    }
    if (connection.rank >= 0) add_loss(connection.rank);
    connection.socket = Socket();
  }

  // Reads the hello message if it has arrived. Returns false for a connection that does not belong to the run.
  bool identify(Connection& connection) const {
    Hello hello;
    if (connection.received.size() < sizeof hello) return true;
    std::memcpy(&hello, connection.received.data(), sizeof hello);
    if (hello.token != token_ || hello.rank <= 0 || hello.rank >= options_.ranks) return false;
    connection.rank = hello.rank;
    connection.received.erase(0, sizeof hello);
    return true;
  }

  void add_loss(int rank) {
    const auto now = WatchClock::now();
    if (stop_seen_ && now - *stop_seen_ > kStopBefore) return;
    if (lost_.empty()) first_loss_ = now;
    lost_.push_back(rank);
  }

  void report() {
    std::ranges::sort(lost_);
    is_reported_ = true;
    options_.lost(lost_);
  }

  const Options options_;
  const Socket wake_;  // an event file
  Socket listener_;    // on rank 0
  std::uint64_t token_ = 0;
  // The thread accesses these members while it runs.
  std::vector<Connection> connections_;
  std::optional<WatchClock::time_point> stop_seen_;
  std::vector<int> lost_;
  WatchClock::time_point first_loss_;
  bool is_reported_ = false;
  std::thread thread_;  // the last member, because the thread uses the other members when it starts
};

PeerWatch::PeerWatch(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
PeerWatch::~PeerWatch() = default;

void PeerWatch::leave() {
  impl_->leave();
}

}  // namespace tessera::rendezvous
