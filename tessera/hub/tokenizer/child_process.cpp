#include "tessera/hub/tokenizer/child_process.h"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/checkpoint/io.h"

extern char** environ;

namespace tessera::hub {
namespace {

// The connection is a socket, because a write to a pipe whose reader has ended would end this process by a signal.
struct Connection {
  checkpoint::FileDescriptor own, of_child;
};
Connection connect() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw Error("cannot make a socket: {}", std::strerror(errno));
  return {.own = checkpoint::FileDescriptor(ends[0]), .of_child = checkpoint::FileDescriptor(ends[1])};
}

// Returns 0 if the program was not found or cannot be executed.
pid_t start(const std::vector<std::string>& words, int socket) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO}) posix_spawn_file_actions_adddup2(&actions, socket, stream);
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error == ENOENT || error == EACCES || error == ENOEXEC || error == ENOTDIR) return 0;
  if (error != 0) throw Error("cannot start {}: {}", words[0], std::strerror(error));
  return child;
}

// Stops early if the program has closed its input.
void send_all(int socket, const std::string& input) {
  std::size_t sent = 0;
  while (sent < input.size()) {
    const ssize_t count = ::send(socket, input.data() + sent, input.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;
    sent += static_cast<std::size_t>(count);
  }
  ::shutdown(socket, SHUT_WR);
}

std::string receive_all(int socket) {
  std::string output;
  std::array<char, 65536> buffer{};
  for (;;) {
    const ssize_t count = ::recv(socket, buffer.data(), buffer.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return output;
    output.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

int exit_code_of(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) throw Error("cannot wait for a process: {}", std::strerror(errno));
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

ChildResult run_child(const std::vector<std::string>& words, const std::string& input) {
  Connection connection = connect();
  const pid_t child = start(words, connection.of_child.get());
  if (child == 0) return {};
  connection.of_child = {};
  send_all(connection.own.get(), input);
  ChildResult result{.started = true, .code = 0, .output = receive_all(connection.own.get())};
  result.code = exit_code_of(child);
  return result;
}

}  // namespace tessera::hub
