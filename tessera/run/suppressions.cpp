#include "tessera/run/suppressions.h"

#include <fmt/format.h>

#include <utility>

#include "tessera/base/error.h"
#include "tessera/train/trainer.h"

namespace tessera::run {

namespace {

std::string cause_of(const train::Stop& stop) {
  if (stop.counter == train::kExpertRoomStop)
    return "a rank had more rows of experts than memory for them, which --expert-room sets";
  return fmt::format("stop counter '{}' is {}, expected 0", stop.counter, stop.count);
}

}  // namespace

bool Suppressions::is_injected(std::int64_t step) const {
  const auto at = injected_.find(step);
  return at != injected_.end() && at->second > 0;
}

void Suppressions::record_suppressed(std::int64_t step, const train::Stop& stop) {
  if (is_injected(step)) --injected_.at(step);
  ++by_counter_[stop.counter];
  if (++consecutive_ == kMaxAttempts)
    throw Error("step {}: its update was suppressed {} times in a row: {}", step, kMaxAttempts, cause_of(stop));
}

int Suppressions::record_counted() {
  return std::exchange(consecutive_, 0);
}

}  // namespace tessera::run
