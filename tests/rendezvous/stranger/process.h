// Starts the program `stranger` beside a test.
#pragma once
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>

namespace tessera::rendezvous {

// The time for which a stranger disturbs a test: TESSERA_STRANGER_SECONDS, or 1 s.
inline std::chrono::seconds stranger_time() {
  const char* seconds = std::getenv("TESSERA_STRANGER_SECONDS");
  return std::chrono::seconds(seconds == nullptr ? 1 : std::atoi(seconds));
}

class StrangerProcess {
 public:
  explicit StrangerProcess(int port, std::chrono::seconds time = stranger_time()) {
    std::string program = STRANGER, seconds = std::to_string(time.count()), target = std::to_string(port);
    char* arguments[] = {program.data(), seconds.data(), target.data(), nullptr};
    posix_spawn(&process_, program.c_str(), nullptr, nullptr, arguments, environ);
  }
  ~StrangerProcess() {
    if (process_ > 0) kill(process_, SIGKILL);
    was_accepted();
  }
  StrangerProcess(const StrangerProcess&) = delete;
  StrangerProcess& operator=(const StrangerProcess&) = delete;

  bool runs() {
    return process_ > 0 && waitid(P_PID, static_cast<id_t>(process_), &end_, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           end_.si_pid == 0;
  }
  // Waits for the end of the process. Returns whether a port accepted one of its connections.
  bool was_accepted() {
    if (process_ <= 0) return accepted_;
    int status = 0;
    waitpid(process_, &status, 0);
    process_ = -1;
    return accepted_ = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t process_ = -1;
  siginfo_t end_{};
  bool accepted_ = false;
};

}  // namespace tessera::rendezvous
