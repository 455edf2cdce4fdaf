#include "tessera/base/process/running_clock.h"

namespace tessera::base {
namespace {

// Global state, because all threads of a process stop together.
RunningTime of_this_process;

}  // namespace

std::chrono::nanoseconds RunningTime::at(std::chrono::nanoseconds now) {
  std::lock_guard lock(mutex_);
  // `now` may be earlier than last_, if another thread has read its clock later and called this function earlier.
  if (now - last_ > kLongestGap) stopped_ += now - last_ - kLongestGap;
  last_ = std::max(last_, now);
  return last_ - stopped_;
}

RunningClock::time_point RunningClock::now() {
  return time_point(of_this_process.at(std::chrono::steady_clock::now().time_since_epoch()));
}

}  // namespace tessera::base
