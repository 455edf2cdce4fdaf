// A library for LD_PRELOAD that runs a program many times but loads its libraries once, because libtorch takes
// 0.16 s to load. With TESSERA_TEST_SERVER=SOCKET the program waits at the beginning of main() for requests on that
// socket. Each request runs main() in a fork, with the arguments, the folder and the files of the request. Its
// environment is the server's, with the request's changes. A fork is killed when its client closes the connection. The
// server ends when its standard input closes, and its forks end with it. The clients are tests/e2e/fork_server.py and
// run_in_fork.cpp.
//
// A request starts with one message that contains three files (standard input, output and error) and the 4-byte length
// of the text. The text follows as zero-terminated strings: the folder, the changed variables (NAME=VALUE), an empty
// string, and the arguments. The reply is the process id (4 bytes) and, after the process has ended, its wait status
// (4 bytes).
#include <dlfcn.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

using Main = int (*)(int, char**, char**);

Main program_main = nullptr;  // main() of the program that loads this library

struct Request {
  std::array<int, 3> files{};
  std::string text;
};

bool read_all(int socket, char* data, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = read(socket, data, bytes);
    if (got <= 0) return false;
    data += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

std::optional<Request> receive(int socket) {
  Request request;
  std::uint32_t bytes = 0;
  iovec part{.iov_base = &bytes, .iov_len = sizeof bytes};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof request.files)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != sizeof bytes) return std::nullopt;
  const cmsghdr* files = CMSG_FIRSTHDR(&message);
  if (files == nullptr || files->cmsg_type != SCM_RIGHTS) return std::nullopt;
  std::memcpy(request.files.data(), CMSG_DATA(files), sizeof request.files);
  request.text.resize(bytes);
  if (!read_all(socket, request.text.data(), bytes)) return std::nullopt;
  return request;
}

void close_files(const Request& request) {
  for (const int file : request.files)
    if (file > 2) close(file);
}

// Returns the strings of the request. They point into `text`.
std::vector<char*> strings_of(std::string& text) {
  std::vector<char*> strings;
  for (std::size_t at = 0; at < text.size(); at += std::strlen(&text[at]) + 1) strings.push_back(&text[at]);
  return strings;
}

int run_main(Request& request) {
  for (int file = 0; file < 3; ++file) dup2(request.files[static_cast<std::size_t>(file)], file);
  close_files(request);
  std::vector<char*> arguments = strings_of(request.text);
  if (arguments.empty() || chdir(arguments.front()) != 0) return 127;
  const auto empty = std::find_if(arguments.begin() + 1, arguments.end(), [](const char* one) { return *one == '\0'; });
  if (empty == arguments.end()) return 127;
  std::for_each(arguments.begin() + 1, empty, putenv);  // the strings exist until the process ends
  arguments.erase(arguments.begin(), empty + 1);
  arguments.push_back(nullptr);
  // Variables that libraries have set since the start are kept.
  unsetenv("LD_PRELOAD");
  unsetenv("TESSERA_TEST_SERVER");
  const int code = program_main(static_cast<int>(arguments.size()) - 1, arguments.data(), environ);
  std::exit(code);  // exits while the strings exist
}

// Forks. The new process is killed when its parent ends.
pid_t fork_with_parent() {
  const pid_t parent = getpid();
  const pid_t process = fork();
  if (process == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)) _exit(1);
  return process;
}

// Waits for the end of a child process and returns its wait status, or nothing if the system has lost it. Kills the
// child if the client closes `connection`.
std::optional<int> wait_for_end(pid_t process, int connection) {
  std::array<pollfd, 2> waited{
      {{.fd = static_cast<int>(syscall(SYS_pidfd_open, process, 0)), .events = POLLIN, .revents = 0},
       {.fd = connection, .events = POLLRDHUP, .revents = 0}}};
  for (;;) {
    int status = 0;
    const pid_t ended = waitpid(process, &status, WNOHANG);
    if (ended != 0) return ended == process ? std::optional(status) : std::nullopt;
    poll(waited.data(), waited.size(), waited[0].fd < 0 ? 10 : -1);  // old kernels have no file for a process
    if (std::exchange(waited[1].revents, 0) == 0) continue;
    kill(process, SIGKILL);
    waited[1].fd = -1;
  }
}

// Runs in a separate process and handles one request from its first byte to the reply.
[[noreturn]] void serve_one(int socket) {
  std::optional<Request> request = receive(socket);
  if (!request) _exit(1);
  const pid_t process = fork_with_parent();
  if (process == 0) {
    close(socket);
    _exit(run_main(*request));
  }
  if (process < 0) _exit(1);
  close_files(*request);
  // The fork is killed when this process ends.
  const auto number = static_cast<std::int32_t>(process);
  if (send(socket, &number, sizeof number, MSG_NOSIGNAL) != sizeof number) _exit(1);
  const std::optional<int> status = wait_for_end(process, socket);
  _exit(status && send(socket, &*status, sizeof *status, MSG_NOSIGNAL) == sizeof *status ? 0 : 1);
}

int serve(const char* path) {
  std::signal(SIGCHLD, SIG_DFL);  // if it is ignored, no process learns how a child ended
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path, sizeof address.sun_path - 1);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || listen(listener, 64) != 0)
    return 1;
  std::array<pollfd, 2> waited{
      {{.fd = listener, .events = POLLIN, .revents = 0}, {.fd = 0, .events = POLLIN, .revents = 0}}};
  for (;;) {
    if (poll(waited.data(), waited.size(), 1000) < 0) continue;
    while (waitpid(-1, nullptr, WNOHANG) > 0) continue;
    if (waited[1].revents != 0) _exit(0);  // without destructors of libraries whose program did not run
    if ((waited[0].revents & POLLIN) == 0) continue;
    const int connection = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    if (fork_with_parent() == 0) {
      close(listener);
      serve_one(connection);
    }
    close(connection);
  }
}

int serve_or_run(int count, char** arguments, char** variables) {
  const char* path = std::getenv("TESSERA_TEST_SERVER");
  return path != nullptr ? serve(path) : program_main(count, arguments, variables);
}

}  // namespace

// The startup code of the program calls this function with the program's main().
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming): the C library gives the name
extern "C" int __libc_start_main(Main main, int count, char** arguments, void (*init)(), void (*fini)(),
                                 void (*rtld_fini)(), void* stack_end) {
  program_main = main;
  using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  const auto start = reinterpret_cast<Start>(dlsym(RTLD_NEXT, "__libc_start_main"));
  return start(serve_or_run, count, arguments, init, fini, rtld_fini, stack_end);
}
