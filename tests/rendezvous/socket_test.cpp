#include "tessera/rendezvous/socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>

#include "tests/rendezvous/listening.h"

namespace tessera::rendezvous {
namespace {

TEST(Sockets, APortIsTakenWhileItsSocketExists) {
  Socket first = bind_socket(Interfaces::loopback, 0);
  const int port = port_of(first);
  ASSERT_EQ(listen(first.get(), 1), 0);
  for (const Interfaces interfaces : {Interfaces::loopback, Interfaces::all}) {
    EXPECT_FALSE(bind_socket(interfaces, port));
    EXPECT_EQ(errno, EADDRINUSE);
  }
  first = Socket();
  EXPECT_TRUE(bind_socket(Interfaces::loopback, port));
}

TEST(Sockets, OnlySocketsOfAllInterfacesAreBeyondLoopback) {
  for (const Interfaces interfaces : {Interfaces::loopback, Interfaces::all}) {
    const Socket socket = bind_socket(interfaces, 0);
    ASSERT_EQ(listen(socket.get(), 1), 0);
    const Listening expected{.is_loopback = interfaces == Interfaces::loopback, .port = port_of(socket)};
    EXPECT_EQ(listening_sockets(), std::vector{expected});
  }
}

}  // namespace
}  // namespace tessera::rendezvous
