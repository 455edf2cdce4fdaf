#include "tessera/rendezvous/peer_watch.h"

#include <fcntl.h>
#include <fmt/format.h>
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
#include <charconv>
#include <chrono>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "tessera/rendezvous/host.h"
#include "tessera/rendezvous/newcomers.h"
#include "tessera/rendezvous/run_identity.h"
#include "tessera/rendezvous/socket.h"

namespace tessera::rendezvous {

namespace {

using std::chrono::milliseconds;
using WatchClock = std::chrono::steady_clock;

constexpr milliseconds kTogether{200};  // ranks that end within this time after the first are reported together
constexpr milliseconds kStopSeen{100};  // interval between two calls of stop_requested
constexpr milliseconds kStopBefore{
    400};  // if a stop request is older than the end of a rank by this time, the request is the cause of the end
constexpr std::string_view kBye = "bye";  // the last line of a rank that leaves

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

// Rank 0 sends this text to the ranks that connect to it.
struct Address {
  std::string network;  // rank 0's network_identity()
  Rank0Port port;       // with rank 0's host_name()
};

std::string to_text(const Address& address) {
  const auto& [host, port, handshake] = address.port;
  return fmt::format("{}\n{}\n{}\n{}\n{}", address.network, host, port, handshake.hello, handshake.welcome);
}

// Returns nullopt if the text is not an address.
std::optional<Address> parse_address(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  if (lines.size() != 5 || lines[3].empty() || lines[4].empty()) return std::nullopt;
  Address address{.network = lines[0],
                  .port = {.host = lines[1], .handshake = {.hello = lines[3], .welcome = lines[4]}}};
  int& port = address.port.port;
  const auto [end, error] = std::from_chars(lines[2].data(), lines[2].data() + lines[2].size(), port);
  return error == std::errc() && *end == 0 && port > 0 && port < 65536 ? std::optional(address) : std::nullopt;
}

}  // namespace

class PeerWatch::Impl {
 public:
  explicit Impl(Options options) : options_(std::move(options)), wake_(::eventfd(0, EFD_CLOEXEC)) {
    std::string address;
    if (options_.rank == 0 && options_.ranks <= kMaxWatched) address = listen();
    address = options_.share(address);
    if (options_.rank > 0) connect(address);
    if (newcomers_ || !connections_.empty() || options_.tick) thread_ = std::thread([this] { serve(); });
  }
  ~Impl() { stop(); }

  void leave() {
    stop();
    for (Connection& connection : connections_) {
      connection.outbox.append(kBye).push_back('\n');
      flush(connection);
    }
    connections_.clear();
    newcomers_.reset();
  }

 private:
  struct Connection {
    int rank = 0;
    Socket socket;
    std::string inbox = {}, outbox = {};  // received bytes of an incomplete line, and bytes that are not sent yet
  };

  // Returns the address for the other ranks, or an empty text if this host has no free port.
  std::string listen() {
    Socket listener = bind_socket(options_.is_one_host ? Interfaces::loopback : Interfaces::all, 0);
    if (!listener || ::fcntl(listener.get(), F_SETFL, O_NONBLOCK) != 0 || ::listen(listener.get(), SOMAXCONN) != 0)
      return "";
    const Address address{.network = network_identity(),
                          .port = {.host = host_name(),
                                   .port = port_of(listener),
                                   .handshake = {.hello = draw_identity(), .welcome = draw_identity()}}};
    newcomers_.emplace(std::move(listener), address.port.handshake, options_.ranks);
    return to_text(address);
  }

  void connect(const std::string& text) {
    std::optional<Address> address = parse_address(text);
    if (!address) return;
    if (options_.is_one_host || address->network == network_identity()) address->port.host = "127.0.0.1";
    Socket socket = connect_to_rank_0(address->port, options_.rank, options_.connecting);
    if (!socket) return;
    detect_dead_hosts(socket);
    connections_.push_back({.rank = 0, .socket = std::move(socket)});
  }

  void stop() {
    if (!thread_.joinable()) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
    thread_.join();
  }

  void serve() {
    pthread_setname_np(pthread_self(), "peer watch");
    while (look()) {
    }
    if (!is_reported_ && !lost_.empty()) report();
  }

  // Waits for events and handles them. Returns false when the watch ends.
  bool look() {
    std::vector<pollfd> files{{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
    for (const Connection& connection : connections_)
      files.push_back({.fd = connection.socket.get(), .events = POLLIN, .revents = 0});
    if (newcomers_) newcomers_->add_files(files);
    const milliseconds limit = lost_.empty() || is_reported_ ? kStopSeen : kTogether / 4;
    if (::poll(files.data(), files.size(), static_cast<int>(limit.count())) < 0) return errno == EINTR;
    if (!stop_seen_ && options_.stop_requested && options_.stop_requested()) stop_seen_ = WatchClock::now();
    for (std::size_t i = 0; i < connections_.size(); ++i)
      if (files[i + 1].revents != 0) receive(connections_[i]);
    std::erase_if(connections_, [](const Connection& connection) { return !connection.socket; });
    if (newcomers_) accept();
    if (!is_reported_ && !lost_.empty() && WatchClock::now() - first_loss_ > kTogether) report();
    send_line();
    if (options_.tick) options_.tick();
    return files[0].revents == 0;
  }

  void accept() {
    for (auto& [rank, socket] : newcomers_->serve()) {
      detect_dead_hosts(socket);
      connections_.push_back({.rank = rank, .socket = std::move(socket)});
    }
    if (!newcomers_->is_open()) newcomers_.reset();
  }

  // Reads the bytes that have arrived. Closes the connection if the peer has ended or has left.
  void receive(Connection& connection) {
    std::array<char, 4096> bytes{};
    const ssize_t count = ::recv(connection.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) {
      add_loss(connection.rank);
      connection.socket = Socket();
      return;
    }
    std::string& inbox = connection.inbox;
    inbox.append(bytes.data(), static_cast<std::size_t>(count));
    for (std::size_t end = 0; (end = inbox.find('\n')) != std::string::npos; inbox.erase(0, end + 1)) {
      const std::string line = inbox.substr(0, end);
      if (line == kBye) {
        connection.socket = Socket();
        return;
      }
      if (options_.received) options_.received(connection.rank, line);
    }
    if (inbox.size() > kLongestLine) connection.socket = Socket();  // another program
  }

  // Sends this rank's line. A peer that does not read gets no further line until it has read the last one.
  void send_line() {
    if (!options_.line) return;
    const std::string line = options_.line();
    if (line.empty()) return;
    for (Connection& connection : connections_) {
      if (connection.outbox.empty()) connection.outbox = line + '\n';
      flush(connection);
    }
  }

  static void flush(Connection& connection) {
    const std::string& text = connection.outbox;
    const ssize_t sent = ::send(connection.socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) connection.outbox.erase(0, static_cast<std::size_t>(sent));
  }

  void add_loss(int rank) {
    if (options_.rank > 1 || is_reported_) return;
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
  // The thread accesses these members while it runs.
  std::optional<Newcomers> newcomers_;  // on rank 0, while ranks may connect
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
