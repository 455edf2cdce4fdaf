// TCP sockets of this process.
#pragma once
#include <utility>

namespace tessera::rendezvous {

// Owns a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int file) : file_(file) {}
  Socket(Socket&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  ~Socket();
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  int get() const { return file_; }
  explicit operator bool() const { return file_ >= 0; }
  // Gives the descriptor to the caller, who closes it.
  int release() { return std::exchange(file_, -1); }

 private:
  int file_ = -1;
};

// The interfaces that a socket receives connections on. Only processes of this host can connect to loopback.
enum class Interfaces { loopback, all };

// Returns a socket that is bound to `port` and does not listen yet. If `port` is 0, the kernel chooses a free port, and
// no other process can take it while the socket exists. Child programs do not inherit the socket. Loopback is
// 127.0.0.1. On all interfaces the socket serves IPv6 and IPv4 if the host has both. Returns an empty socket on
// failure, with the cause in errno.
Socket bind_socket(Interfaces interfaces, int port);
// Returns the port of a bound socket.
int port_of(const Socket& socket);

}  // namespace tessera::rendezvous
