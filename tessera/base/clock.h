// Time that is computed instead of measured, seconds from 0 on; and what time it is on either kind of clock.
#pragma once
#include <chrono>
#include <mutex>

namespace tessera::base {

// The time that a host, or a lane, has come to. Any thread may use it; it never goes back.
class VirtualClock {
 public:
  double now() const;
  void advance(double seconds);  // Errors: less than 0, not finite
  void raise_to(double time);    // without effect where it is later already

 private:
  mutable std::mutex mutex_;
  double now_ = 0;
};

// Seconds of `clock`, or of the steady clock where `clock` is null and time is real.
inline double seconds_on(const VirtualClock* clock) {
  if (clock) return clock->now();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace tessera::base
