// Runs a program in a fork of its server (fork_server.cpp): run_in_fork SOCKET PROGRAM [ARGUMENT...]. mpirun starts
// this small program instead of the program itself. The fork has this program's folder and files. Its environment is
// the server's, with this program's variables. Its limits, its mask of new files and its processors are the server's.
// This program passes the signals below to the fork, and ends with the fork's exit code or signal.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

volatile std::sig_atomic_t process = 0;  // the fork

void pass_on(int signal) {
  kill(static_cast<pid_t>(process), signal);
}

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::_Exit(127);
}

int connect_to(const char* path) {
  const int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  if (connect(connection, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) fail(path);
  return connection;
}

// Returns the text of the request (fork_server.cpp).
std::string text_of(char** arguments) {
  std::array<char, PATH_MAX> folder{};
  if (getcwd(folder.data(), folder.size()) == nullptr) fail("the folder");
  std::string text = folder.data();
  text += '\0';
  for (char** variable = environ; *variable != nullptr; ++variable) text.append(*variable).push_back('\0');
  text += '\0';
  for (; *arguments != nullptr; ++arguments) text.append(*arguments).push_back('\0');
  return text;
}

void send_request(int connection, const std::string& text) {
  std::array<int, 3> files{0, 1, 2};
  auto bytes = static_cast<std::uint32_t>(text.size());
  iovec part{.iov_base = &bytes, .iov_len = sizeof bytes};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof files)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof files);
  std::memcpy(CMSG_DATA(header), files.data(), sizeof files);
  if (sendmsg(connection, &message, MSG_NOSIGNAL) != sizeof bytes) fail("the request");
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t now = send(connection, &text[sent], text.size() - sent, MSG_NOSIGNAL);
    if (now <= 0) fail("the request");
    sent += static_cast<std::size_t>(now);
  }
}

std::int32_t read_number(int connection) {
  std::int32_t number = 0;
  ssize_t got = 0;
  do got = recv(connection, &number, sizeof number, MSG_WAITALL);
  while (got < 0 && errno == EINTR);
  if (got == 0) errno = ECONNRESET;
  if (got != sizeof number) fail("the fork server ended");
  return number;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) {
    std::fputs("usage: run_in_fork SOCKET PROGRAM [ARGUMENT...]\n", stderr);
    return 2;
  }
  int unused = 0;  // the connection must not become one of the files of the fork
  while (unused >= 0 && unused < 3) unused = open("/dev/null", O_RDWR | O_CLOEXEC);
  const int connection = connect_to(arguments[1]);
  send_request(connection, text_of(arguments + 2));
  process = read_number(connection);
  // A signal before this line ends this program, and the server then kills the fork.
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) std::signal(signal, pass_on);
  const int status = read_number(connection);
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
  std::signal(WTERMSIG(status), SIG_DFL);
  raise(WTERMSIG(status));
  return 128 + WTERMSIG(status);
}
