#include "tessera/run/suppressions.h"

#include <utility>

#include "tessera/base/error.h"

namespace tessera::run {

bool Suppressions::is_injected(std::int64_t step) const {
  const auto at = injected_.find(step);
  return at != injected_.end() && at->second > 0;
}

void Suppressions::saw_suppressed(std::int64_t step, const train::Stop& stop) {
  if (is_injected(step)) --injected_.at(step);
  ++by_counter_[stop.counter];
  if (++in_a_row_ == kMost)
    throw Error("step {}: its update was suppressed {} times in a row: stop counter '{}' is {}, expected 0", step,
                kMost, stop.counter, stop.count);
}

int Suppressions::saw_counted() {
  return std::exchange(in_a_row_, 0);
}

}  // namespace tessera::run
