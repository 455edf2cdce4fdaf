// Time that is computed instead of measured: seconds from 0 on.
#pragma once
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

}  // namespace tessera::base
