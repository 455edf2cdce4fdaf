// Requests to stop a run early: the signals that request a stop, and the number of requests.
#pragma once
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <limits>

namespace tessera::rendezvous {

// SIGINT comes from a terminal, SIGTERM from batch systems, and SIGHUP from a terminal or a connection that is lost.
// mpirun forwards SIGUSR1 and keeps the ranks running.
inline constexpr int kStopSignals[] = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};

// Counts requests to stop. One request may arrive as several signals. For example, a terminal signals all processes of
// the foreground group, and a launcher forwards the signal to its ranks. Signals within kSameRequest after the first
// signal therefore count as one request. SIGHUP is never a second request, because the kernel, the shell and the
// launcher may each send it at another time. Safe in signal handlers and threads.
class StopRequests {
 public:
  static constexpr std::chrono::nanoseconds kSameRequest = std::chrono::milliseconds(500);

  // Adds a signal. `now` is the time of a steady clock. Returns 1 if the signal belongs to the first request, and 2 if
  // it belongs to a later request.
  int add(int signal, std::chrono::nanoseconds now) {
    std::int64_t first = kNever;
    if (first_.compare_exchange_strong(first, now.count())) return 1;
    return signal == SIGHUP || now.count() - first < kSameRequest.count() ? 1 : 2;
  }
  bool any() const { return first_ != kNever; }

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::min();
  std::atomic<std::int64_t> first_{kNever};
  static_assert(std::atomic<std::int64_t>::is_always_lock_free);
};

// A steady clock that signal handlers may read.
inline std::chrono::nanoseconds steady_now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

// Returns whether this process ignores the signal. A program that is started with an ignored signal, for example by
// nohup, continues to ignore it.
inline bool is_ignored(int signal) {
  struct sigaction action {};
  sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

// Lets this process receive the stop signals. In ranks that run_processes starts, these signals are blocked until the
// rank calls this function.
inline void accept_stop_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kStopSignals) sigaddset(&set, signal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace tessera::rendezvous
