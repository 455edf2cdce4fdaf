#include "tessera/rendezvous/host.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace tessera::rendezvous {
namespace {

constexpr int kNotAllowed = 77;

// Runs `part` in a process with other namespaces, and returns its exit code.
int in_namespaces(int namespaces, const std::function<int()>& part) {
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(namespaces) != 0 && unshare(namespaces | CLONE_NEWUSER) != 0) _exit(kNotAllowed);
    _exit(part());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Hosts, ProcessesOfAHostHaveEqualIdentities) {
  const std::string host = host_identity(), network = network_identity();
  EXPECT_EQ(host_identity(), host);
  EXPECT_EQ(network_identity(), network);
  EXPECT_TRUE(host.starts_with(host_name() + " "));
  EXPECT_GE(host.size(), host_name().size() + 32);  // the kernel's identity has 36 characters
  const int child = in_namespaces(0, [&] { return host_identity() == host && network_identity() == network ? 0 : 1; });
  EXPECT_EQ(child, 0);
}

// Containers with the name of their host have their own loopback.
TEST(Hosts, ProcessesInAnotherNetworkHaveAnotherIdentity) {
  const std::string host = host_identity(), network = network_identity();
  const int child =
      in_namespaces(CLONE_NEWNET, [&] { return host_identity() == host && network_identity() != network ? 0 : 1; });
  if (child == kNotAllowed) GTEST_SKIP() << "this process may not create a network";
  EXPECT_EQ(child, 0);
}

}  // namespace
}  // namespace tessera::rendezvous
