#include "tessera/run/suppressions.h"

#include <utility>

#include "tessera/base/error.h"

namespace tessera::run {

bool Suppressions::is_injected(std::int64_t step) const {
  const auto at = injected_.find(step);
  return at != injected_.end() && at->second > 0;
}

void Suppressions::record_suppressed(std::int64_t step, const train::Stop& stop) {
  if (is_injected(step)) --injected_.at(step);
  ++by_counter_[stop.counter];
  if (++consecutive_ == kMaxAttempts)
    throw Error("step {}: its update was suppressed {} times in a row: stop counter '{}' is {}, expected 0", step,
                kMaxAttempts, stop.counter, stop.count);
}

int Suppressions::record_counted() {
  return std::exchange(consecutive_, 0);
}

}  // namespace tessera::run
