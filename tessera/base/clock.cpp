#include "tessera/base/clock.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"

namespace tessera::base {

double VirtualClock::now() const {
  std::lock_guard lock(mutex_);
  return now_;
}

void VirtualClock::advance(double seconds) {
  TESSERA_CHECK(seconds >= 0 && std::isfinite(seconds), "clock: expected 0 seconds or more, got {}", seconds);
  std::lock_guard lock(mutex_);
  now_ += seconds;
}

void VirtualClock::raise_to(double time) {
  std::lock_guard lock(mutex_);
  now_ = std::max(now_, time);
}

}  // namespace tessera::base
