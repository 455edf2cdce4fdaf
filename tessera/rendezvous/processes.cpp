#include "tessera/rendezvous/processes.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/process/running_clock.h"
#include "tessera/rendezvous/run_identity.h"
#include "tessera/rendezvous/socket.h"
#include "tessera/rendezvous/stop_requests.h"

namespace tessera::rendezvous {
namespace {

using Clock = base::RunningClock;
constexpr auto kLook = std::chrono::milliseconds(50);

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::string> arguments;
  for (std::size_t at = 0; at < text.size(); at = text.find('\0', at) + 1) arguments.emplace_back(text.c_str() + at);
  return arguments;
}

// The time that ranks have to end after a second request to stop.
constexpr auto kEndAtOnce = std::chrono::milliseconds(1000);

// Blocks the signals that request an end while ranks run, and waits for them instead of handling them. Also resets
// SIGCHLD, so that the exit statuses of ranks are kept until they are read, even if the parent of this process ignores
// SIGCHLD.
class EndSignals {
 public:
  EndSignals() {
    struct sigaction keep {};
    keep.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &keep, &ends_before_);
    sigemptyset(&set_);
    // A blocked signal is not ignored, so ignored signals are not blocked.
    for (const int signal : kStopSignals)
      if (!is_ignored(signal)) sigaddset(&set_, signal);
    sigaddset(&set_, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
    mask_of_rank_ = before_;
    for (const int signal : kStopSignals)
      if (sigismember(&set_, signal) == 1) sigaddset(&mask_of_rank_, signal);
    sigaddset(&mask_of_rank_, SIGUSR2);
  }
  ~EndSignals() {
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    sigaction(SIGCHLD, &ends_before_, nullptr);
  }
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;

  // Called in a rank. The stop signals stay blocked until the rank calls accept_stop_signals. One call sets the whole
  // mask: a signal that arrived between two calls would end the rank.
  void set_mask_of_rank() const { pthread_sigmask(SIG_SETMASK, &mask_of_rank_, nullptr); }
  // Returns the next signal, or 0 if no signal arrives within the limit.
  int next(std::chrono::milliseconds limit) const {
    const timespec time{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(limit).count()};
    const int signal = sigtimedwait(&set_, nullptr, &time);
    return signal > 0 ? signal : 0;
  }

 private:
  sigset_t set_{}, before_{}, mask_of_rank_{};
  struct sigaction ends_before_ {};
};

// The values that all ranks of a run share.
struct NewRanks {
  int count = 1;
  std::vector<std::string> arguments = own_arguments();
  std::string run = draw_identity();
  Socket port = bind_socket(Interfaces::loopback, 0);
  pid_t parent = getpid();
};

// Called in the child process. Does not return.
[[noreturn]] void become_rank(const NewRanks& ranks, int rank, const EndSignals& signals) {
  signals.set_mask_of_rank();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != ranks.parent) _exit(1);
  const auto set = [](const char* name, const std::string& value) { setenv(name, value.c_str(), 1); };
  set("RANK", std::to_string(rank));
  set("LOCAL_RANK", std::to_string(rank));
  set("WORLD_SIZE", std::to_string(ranks.count));
  set("TESSERA_SELF_STARTED", "1");
  set("TESSERA_RUN_ID", ranks.run);
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(port_of(ranks.port)));
  unsetenv(
      "TORCHELASTIC_USE_AGENT_STORE");  // a shell may still have this variable set, but here rank 0 hosts the store
  // Rank 0 inherits the bound socket, so that no other process can take the port in between.
  if (rank == 0) set("TESSERA_STORE_SOCKET", std::to_string(dup(ranks.port.get())));
  std::vector<char*> pointers;
  for (const std::string& argument : ranks.arguments) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  execv("/proc/self/exe", pointers.data());
  fmt::print(stderr, "tessera: rank {}: cannot start: {}\n", rank, std::strerror(errno));
  _exit(1);
}

void signal_all(const std::vector<pid_t>& processes, int signal) {
  for (const pid_t process : processes)
    if (process > 0) kill(process, signal);
}

int code_of(int status) {
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The time at which the remaining ranks are killed, and the reason.
struct Limit {
  Clock::time_point end = Clock::time_point::max();
  std::string reason;
  void shorten(std::chrono::milliseconds time, const std::string& why) {
    if (Clock::now() + time >= end) return;
    end = Clock::now() + time;
    reason = fmt::format("still ran {} ms after {}", time.count(), why);
  }
  bool is_over() const { return Clock::now() > end; }
};

void print_end(int rank, int signal, const Limit& limit) {
  if (signal == SIGKILL && limit.is_over())
    fmt::print(stderr, "tessera: rank {}: {}: killed\n", rank, limit.reason);
  else
    fmt::print(stderr, "tessera: rank {}: ended by signal {} ({})\n", rank, signal, strsignal(signal));
}

std::vector<pid_t> start_all(int ranks, const EndSignals& signals) {
  const NewRanks fresh{.count = ranks};
  if (!fresh.port) throw Error("cannot reserve a free port: {}", std::strerror(errno));
  std::fflush(nullptr);
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t process = fork();
    if (process == 0) become_rank(fresh, rank, signals);
    if (process < 0) {
      const int error = errno;
      signal_all(processes, SIGKILL);
      throw Error("cannot start rank {} of {}: {}", rank, ranks, std::strerror(error));
    }
    processes.push_back(process);
  }
  return processes;
}

}  // namespace

int run_processes(int ranks, std::chrono::milliseconds grace, const std::function<bool()>& stop_requested) {
  const EndSignals signals;
  std::vector<pid_t> processes = start_all(ranks, signals);
  StopRequests requests;
  Limit limit;
  int code = 0, alive = ranks;
  while (alive > 0) {
    int signal = signals.next(kLook);
    if (signal == 0 && !requests.any() && stop_requested && stop_requested()) signal = SIGTERM;
    if (signal != 0) signal_all(processes, signal);
    if (signal != 0 && signal != SIGUSR2 && requests.add(signal, steady_now()) > 1)
      limit.shorten(kEndAtOnce, "a second request to stop");
    if (limit.is_over()) signal_all(processes, SIGKILL);
    for (int rank = 0; rank < ranks; ++rank) {
      pid_t& process = processes[static_cast<std::size_t>(rank)];
      int status = 0;
      if (process <= 0 || waitpid(process, &status, WNOHANG) != process) continue;
      process = -1;
      --alive;
      if (WIFSIGNALED(status)) print_end(rank, WTERMSIG(status), limit);
      if (code_of(status) == 0 || code != 0) continue;
      code = code_of(status);
      limit.shorten(grace, "another rank had failed");
    }
  }
  return code;
}

}  // namespace tessera::rendezvous
