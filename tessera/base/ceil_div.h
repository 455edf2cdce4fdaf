// Integer division that rounds up.
#pragma once
#include <cstdint>

namespace tessera::base {

// Returns value / divisor, rounded up. `value` is not negative, and `divisor` is positive.
constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}

}  // namespace tessera::base
