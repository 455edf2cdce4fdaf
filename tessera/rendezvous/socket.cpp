#include "tessera/rendezvous/socket.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <type_traits>

namespace tessera::rendezvous {
namespace {

// Returns an empty socket on failure, with the cause in errno.
template <typename Address>
Socket bind_to(const Address& address, int port) {
  Socket socket(::socket(reinterpret_cast<const sockaddr*>(&address)->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return {};
  const int on = 1, off = 0;
  // The port of a run that has just ended can be bound at once.
  if (port != 0) ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if constexpr (std::is_same_v<Address, sockaddr_in6>)
    ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return socket;
  const int error = errno;
  socket = Socket();
  errno = error;
  return {};
}

Socket bind_ipv4(in_addr_t interface, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(interface);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return bind_to(address, port);
}

}  // namespace

Socket::~Socket() {
  if (file_ >= 0) ::close(file_);
}

Socket bind_socket(Interfaces interfaces, int port) {
  if (interfaces == Interfaces::loopback) return bind_ipv4(INADDR_LOOPBACK, port);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  address.sin6_port = htons(static_cast<std::uint16_t>(port));
  Socket socket = bind_to(address, port);
  if (socket || errno == EADDRINUSE || errno == EACCES) return socket;
  return bind_ipv4(INADDR_ANY, port);
}

int port_of(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace tessera::rendezvous
