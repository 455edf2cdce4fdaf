// Runs code in a process that is stopped for some time.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace tessera::base {

// Returns the result of `body`, which runs in a child process. The body stops the process once, by raise(SIGSTOP).
// After the time `stop` the process is resumed. Returns -1 if the process does not stop or is ended by a signal.
template <typename Body>
int run_with_stop(std::chrono::milliseconds stop, Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  if (waitpid(child, &status, WUNTRACED) != child || !WIFSTOPPED(status)) return -1;
  std::this_thread::sleep_for(stop);
  kill(child, SIGCONT);
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace tessera::base
