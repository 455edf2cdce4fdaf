// Steps that the host has enqueued, and their end.
#include <limits>

#include "tessera/runtime/runtime.h"

namespace tessera::runtime {
namespace {

// Ranks whose step takes longer than this are looked at.
constexpr std::chrono::seconds kLongStep{10};

}  // namespace

PendingStep Runtime::pending() const {
  PendingStep step{.number = agreement_.step(),
                   .end = parallel_.compute->record(),
                   .statistics = statistics_,
                   .waits = waits_.on_device()};
  if (!waits_are_known()) step.statistics.exposed_seconds = std::numeric_limits<double>::quiet_NaN();
  return step;
}

bool Runtime::waits_are_known() const {
  // In a recorded step the host waits for on-demand transfers, so device timings would mislead.
  return !parallel_.is_asynchronous() || (waits_.is_measured() && !statistics_.recorded);
}

StepStatistics Runtime::finish(const PendingStep& step) {
  agreement_.wait_on_host(step.end, entries_, kLongStep);
  agreement_.settle(step.number, entries_);
  StepStatistics statistics = step.statistics;
  statistics.exposed_seconds += seconds_of(step.waits);
  return statistics;
}

StepStatistics Runtime::statistics() const {
  StepStatistics statistics = statistics_;
  statistics.exposed_seconds += seconds_of(waits_.on_device());
  if (!waits_are_known()) statistics.exposed_seconds = std::numeric_limits<double>::quiet_NaN();
  return statistics;
}

}  // namespace tessera::runtime
