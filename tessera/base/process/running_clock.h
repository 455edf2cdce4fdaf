// A clock for time limits. It does not count the time in which the process is stopped.
#pragma once
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace tessera::base {

// The time of a process without its stops. A signal (SIGSTOP, Ctrl-Z) or a scheduler (`scontrol suspend`) stops all
// threads of a process, and the system does not tell the process for how long. A stop is therefore detected as a long
// time between two readings by any thread: kLongestGap of this time counts. Any thread may use the object.
class RunningTime {
 public:
  static constexpr std::chrono::milliseconds kLongestGap{200};

  // Returns the running time at `now`, which is a time of a steady clock. The running time never decreases.
  std::chrono::nanoseconds at(std::chrono::nanoseconds now);

 private:
  std::mutex mutex_;
  std::chrono::nanoseconds last_{0}, stopped_{0};
};

// The running time of this process. A thread that waits for a time limit reads the clock at least every kReadEvery, for
// example in wait_until. Otherwise the time of its wait counts as a stop, if no other thread reads the clock.
struct RunningClock {
  using duration = std::chrono::nanoseconds;
  using time_point = std::chrono::time_point<RunningClock>;
  static constexpr std::chrono::milliseconds kReadEvery{50};

  static time_point now();
};

// Waits until the running time `end`. `wait(duration)` waits for at most that duration and returns whether the awaited
// event has occurred. Returns the last result of `wait`, which is called at least once.
template <typename Wait>
bool wait_until(RunningClock::time_point end, Wait wait) {
  for (;;) {
    const auto left = std::max(end - RunningClock::now(), RunningClock::duration::zero());
    if (wait(std::min<RunningClock::duration>(left, RunningClock::kReadEvery))) return true;
    if (left == left.zero()) return false;
  }
}

// Like std::condition_variable::wait_until.
template <typename Predicate>
bool wait_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, RunningClock::time_point end,
                Predicate predicate) {
  return wait_until(end, [&](RunningClock::duration part) { return changed.wait_for(lock, part, predicate); });
}

}  // namespace tessera::base
