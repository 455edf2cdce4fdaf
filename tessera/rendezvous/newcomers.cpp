#include "tessera/rendezvous/newcomers.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>

namespace tessera::rendezvous {
namespace {

using std::chrono::milliseconds;
using Clock = base::RunningClock;

constexpr int kAcceptedAtOnce = 64;         // connections that one call of serve() accepts
constexpr milliseconds kNoDescriptor{200};  // pause after an accept that failed for lack of descriptors or memory
constexpr milliseconds kConnectAgain{20};   // pause between two attempts to connect
constexpr milliseconds kConnectOnce{2000};  // time limit of one attempt

std::string hello_of(const Handshake& handshake, std::int32_t rank) {
  std::string text = handshake.hello;
  text.append(reinterpret_cast<const char*>(&rank), sizeof rank);
  return text;
}

// Sends a few bytes, which fit into the buffer of the socket. A failure means that the peer has ended.
void send_all(const Socket& socket, const std::string& text) {
  [[maybe_unused]] const ssize_t sent = ::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

// Appends the bytes that have arrived until `text` has `size` bytes. Returns false if the connection has ended.
bool receive_up_to(const Socket& socket, std::string& text, std::size_t size) {
  std::array<char, 256> bytes{};
  const ssize_t count = ::recv(socket.get(), bytes.data(), std::min(bytes.size(), size - text.size()), MSG_DONTWAIT);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  text.append(bytes.data(), static_cast<std::size_t>(count));
  return count > 0;
}

bool wait_for(const Socket& socket, short event, Clock::time_point end) {
  return base::wait_until(end, [&](Clock::duration part) {
    pollfd file{.fd = socket.get(), .events = event, .revents = 0};
    return ::poll(&file, 1, static_cast<int>(std::chrono::ceil<milliseconds>(part).count())) == 1;
  });
}

// Returns an empty socket if no connection is made until `end`, with the cause in errno.
Socket connect_once(const addrinfo& address, Clock::time_point end) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return {};
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0 && errno != EINPROGRESS) return {};
  int error = ETIMEDOUT;
  socklen_t size = sizeof error;
  if (wait_for(socket, POLLOUT, end)) ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error == 0) return socket;
  socket = Socket();
  errno = error;
  return {};
}

bool is_welcome(const Socket& socket, const Handshake& handshake, Clock::time_point end) {
  std::string answer;
  while (answer.size() < handshake.welcome.size())
    if (!wait_for(socket, POLLIN, end) || !receive_up_to(socket, answer, handshake.welcome.size())) return false;
  return answer == handshake.welcome;
}

}  // namespace

Newcomers::Newcomers(Socket listener, Handshake handshake, int ranks, const NewcomerLimits& limits)
    : listener_(std::move(listener)),
      handshake_(std::move(handshake)),
      limits_(limits),
      connected_(static_cast<std::size_t>(ranks)),
      missing_(ranks - 1),
      end_(Clock::now() + limits.open) {}

void Newcomers::add_files(std::vector<pollfd>& files) const {
  if (listener_ && Clock::now() >= pause_end_) files.push_back({.fd = listener_.get(), .events = POLLIN, .revents = 0});
  for (const Pending& pending : pending_) files.push_back({.fd = pending.socket.get(), .events = POLLIN, .revents = 0});
}

bool Newcomers::is_missing(int rank) const {
  return rank > 0 && rank < static_cast<int>(connected_.size()) && !connected_[static_cast<std::size_t>(rank)];
}

std::vector<std::pair<int, Socket>> Newcomers::serve() {
  std::vector<std::pair<int, Socket>> identified;
  if (!listener_) return identified;
  const auto now = Clock::now();
  std::erase_if(pending_, [&](Pending& one) { return read(one, identified) != Outcome::waits || now > one.end; });
  if (now >= pause_end_) accept_all(identified);
  if (missing_ == 0 || now > end_) {
    listener_ = Socket();
    pending_.clear();
  }
  return identified;
}

void Newcomers::accept_all(std::vector<std::pair<int, Socket>>& identified) {
  for (int i = 0; i < kAcceptedAtOnce && missing_ > 0; ++i) {
    Pending fresh{.socket = Socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)),
                  .end = Clock::now() + limits_.identify,
                  .received = {}};
    if (!fresh.socket && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (!fresh.socket && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
      pause_end_ = Clock::now() + kNoDescriptor;
    if (!fresh.socket && pause_end_ > Clock::now()) return;
    if (!fresh.socket || read(fresh, identified) != Outcome::waits) continue;
    if (pending_.size() >= static_cast<std::size_t>(missing_)) pending_.erase(pending_.begin());
    pending_.push_back(std::move(fresh));
  }
}

Newcomers::Outcome Newcomers::read(Pending& pending, std::vector<std::pair<int, Socket>>& identified) {
  std::int32_t rank = 0;
  const std::size_t size = handshake_.hello.size() + sizeof rank;
  if (!receive_up_to(pending.socket, pending.received, size)) return Outcome::refused;
  if (!handshake_.hello.starts_with(std::string_view(pending.received).substr(0, handshake_.hello.size())))
    return Outcome::refused;
  if (pending.received.size() < size) return Outcome::waits;
  std::memcpy(&rank, pending.received.data() + handshake_.hello.size(), sizeof rank);
  if (!is_missing(rank)) return Outcome::refused;
  send_all(pending.socket, handshake_.welcome);
  connected_[static_cast<std::size_t>(rank)] = true;
  --missing_;
  identified.emplace_back(rank, std::move(pending.socket));
  return Outcome::identified;
}

Socket connect_to_rank_0(const Rank0Port& port, int rank, milliseconds limit) {
  const auto end = Clock::now() + limit;
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(port.host.c_str(), std::to_string(port.port).c_str(), &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, ::freeaddrinfo);
  for (bool again = true; again && Clock::now() < end; std::this_thread::sleep_for(kConnectAgain)) {
    again = false;
    for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
      Socket socket = connect_once(*address, std::min(end, Clock::now() + kConnectOnce));
      again = again || socket || errno == ETIMEDOUT;
      if (!socket) continue;
      send_all(socket, hello_of(port.handshake, rank));
      if (is_welcome(socket, port.handshake, end)) return socket;
    }
  }
  return {};
}

}  // namespace tessera::rendezvous
