// Disturbs the ports of a run from a program that is not a rank of the run: connects, floods, is silent, and sends
// garbage, half messages, and messages of other runs.
#pragma once
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/rendezvous/run_identity.h"
#include "tessera/rendezvous/socket.h"

namespace tessera::rendezvous {

class Stranger {
 public:
  // Keeps at most `most_silent` connections open at a time.
  explicit Stranger(std::vector<int> ports, std::size_t most_silent = 100)
      : ports_(std::move(ports)), most_silent_(most_silent) {}

  // Disturbs the ports for this time. Returns the number of connections that were accepted.
  std::int64_t run(std::chrono::milliseconds time) {
    const auto end = std::chrono::steady_clock::now() + time;
    while (std::chrono::steady_clock::now() < end)
      for (const int port : ports_) disturb(port);
    return accepted_;
  }

  // Sends requests to libtorch's store and closes the connection at once.
  static void ask_and_leave(int port) {
    const Socket socket = connect_to(port);
    const std::string requests = greeting() + std::string(100, kNumberOfKeys);
    [[maybe_unused]] const ssize_t sent = ::send(socket.get(), requests.data(), requests.size(), MSG_NOSIGNAL);
  }
  // Returns whether libtorch's store answers a request on the port within the limit.
  static bool is_answered(int port, std::chrono::milliseconds limit) {
    const Socket socket = connect_to(port);
    const std::string request = greeting() + std::string(1, kNumberOfKeys);
    pollfd answer{.fd = socket.get(), .events = POLLIN, .revents = 0};
    return socket && ::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) > 0 &&
           ::poll(&answer, 1, static_cast<int>(limit.count())) == 1 && (answer.revents & POLLIN) != 0;
  }

 private:
  static constexpr std::uint32_t kMagic = 0x3C85F7CE;  // begins each connection to libtorch's store
  enum Command : char { kValidate = 0, kSet = 1, kAdd = 4, kCheck = 5, kNumberOfKeys = 7, kDelete = 8 };

  template <typename T>
  static std::string bytes(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }
  static std::string with_size(const std::string& text) { return bytes(std::uint64_t{text.size()}) + text; }
  static std::string set(const std::string& key, const std::string& value) {
    return std::string(1, kSet) + with_size(key) + with_size(value);
  }
  static std::string greeting() { return std::string(1, kValidate) + bytes(kMagic); }

  // Requests to libtorch's store for keys that runs use, without an identity or with that of another run.
  std::string store_requests() {
    const std::string damaged_status =
        bytes(std::uint32_t{1}) + std::string(13, '\0') + bytes(std::uint32_t{0xFFFFFFFF});
    std::string text = greeting();
    for (const std::string& prefix : {std::string(), "run " + draw_identity() + ", attempt 0 of 2 ranks/"}) {
      text += set(prefix + "nccl/failed", "a stranger has failed") + set(prefix + "failed", "a stranger has failed");
      text +=
          set(prefix + "nccl/id/0.0", std::string(128, 'x')) + set(prefix + "nccl/board/0/status/1", damaged_status);
      text += set(prefix + "nccl/board/0/version/1", "1000000") + set(prefix + "tessera run", "another run");
      text += std::string(1, kDelete) + with_size(prefix + "connected");
    }
    return text;
  }

  std::string message() {
    switch (random_() % 8) {
      case 0:  // garbage
        return random_bytes(1 + random_() % 4096);
      case 1:  // the hello of a rank of another run
        return draw_identity() + bytes(std::int32_t{1});
      case 2:
        return draw_identity().substr(0, 1 + random_() % 31);
      case 3:
        return greeting().substr(0, 1 + random_() % 4);
      case 4:
        return greeting() + random_bytes(1 + random_() % 4096);
      case 5:  // a value that never becomes complete, and a size that the store refuses
        return greeting() + std::string(1, kSet) + with_size("key") +
               bytes(std::uint64_t{1} << (random_() % 2 == 0 ? 20 : 62));
      case 6:  // a text to which a number is added, and a list of keys that never becomes complete
        return greeting() + set("key", "text") + std::string(1, kAdd) + with_size("key") + bytes(std::int64_t{1}) +
               std::string(1, kCheck) + bytes(std::uint64_t{100'000});
      default:
        return store_requests();
    }
  }
  std::string random_bytes(std::size_t size) {
    std::string text(size, '\0');
    for (char& byte : text) byte = static_cast<char>(random_());
    return text;
  }

  // Returns an empty socket if the port does not accept the connection soon.
  static Socket connect_to(int port) {
    Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    (void)::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    pollfd file{.fd = socket.get(), .events = POLLOUT, .revents = 0};
    int error = 1;
    socklen_t size = sizeof error;
    if (!socket || ::poll(&file, 1, 50) != 1 || ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 ||
        error != 0)
      return {};
    return socket;
  }

  void disturb(int port) {
    for (int i = 0; i < 20; ++i) accepted_ += connect_to(port) ? 1 : 0;
    Socket open = connect_to(port);
    if (!open) return;
    ++accepted_;
    if (random_() % 4 != 0) {
      const std::string text = message();
      [[maybe_unused]] const ssize_t sent = ::send(open.get(), text.data(), text.size(), MSG_NOSIGNAL);
    }
    silent_.push_back(std::move(open));
    if (silent_.size() > most_silent_) silent_.pop_front();
  }

  const std::vector<int> ports_;
  const std::size_t most_silent_;
  std::mt19937 random_{1};
  std::deque<Socket> silent_;
  std::int64_t accepted_ = 0;
};

}  // namespace tessera::rendezvous
