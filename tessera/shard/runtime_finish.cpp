// Steps that the host has enqueued, and their end.
#include "tessera/shard/runtime.h"

namespace tessera::shard {
namespace {

// Ranks whose step takes longer than this are looked at.
constexpr std::chrono::seconds kLongStep{10};

}  // namespace

PendingStep Runtime::pending() const {
  return {.number = agreement_.step(),
          .end = parallel_.compute->record(),
          .statistics = statistics_,
          .waits = waits_.on_device()};
}

StepStatistics Runtime::finish(const PendingStep& step) {
  agreement_.wait_on_host(step.end, entries_, kLongStep);
  agreement_.settle(step.number, entries_);
  StepStatistics statistics = step.statistics;
  statistics.exposed_seconds += seconds_between(step.waits);
  return statistics;
}

StepStatistics Runtime::statistics() const {
  StepStatistics statistics = statistics_;
  statistics.exposed_seconds += seconds_between(waits_.on_device());
  return statistics;
}

}  // namespace tessera::shard
