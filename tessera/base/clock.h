// Virtual time, which is computed instead of measured, and a function that reads virtual or real time.
#pragma once
#include <chrono>
#include <mutex>

namespace tessera::base {

// The virtual time that a host or a lane has reached, in seconds from 0. Any thread may use the object. The time never
// decreases.
class VirtualClock {
 public:
  double now() const;
  void advance(double seconds);  // throws Error if `seconds` is negative or not finite
  void raise_to(double time);    // no effect if the clock is already later

 private:
  mutable std::mutex mutex_;
  double now_ = 0;
};

// Returns the time of `clock` in seconds. If `clock` is null, time is real: returns the time of the steady clock.
inline double seconds_on(const VirtualClock* clock) {
  if (clock) return clock->now();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace tessera::base
