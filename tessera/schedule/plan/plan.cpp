#include "tessera/schedule/plan/plan.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::schedule {
namespace {

int body_of(const Trace& trace) {
  int body = 0;
  for (int index = 0; index < static_cast<int>(trace.size()); ++index)
    if (trace[static_cast<std::size_t>(index)].microbatch >= 0) body = index + 1;
  const bool ends = std::none_of(trace.begin(), trace.begin() + body,
                                 [](const Event& event) { return event.kind == EventKind::publish; });
  TESSERA_CHECK(
      ends, "expected the optimizer's publish events after the last microbatch, got a publish event before its end");
  return body;
}

}  // namespace

Schedule plan(const Trace& trace, const std::vector<ParameterSize>& sizes, const ScheduleOptions& options) {
  Schedule schedule;
  schedule.events = static_cast<int>(trace.size());
  schedule.body = body_of(trace);
  schedule.trace_hash = hash_trace(trace);
  for (const Event& event : trace) {
    schedule.kind = event.step;
    schedule.microbatches = std::max(schedule.microbatches, event.microbatch + 1);
    TESSERA_CHECK(event.parameter < static_cast<int>(sizes.size()), "the trace uses parameter {}, but there are {}",
                  event.parameter, sizes.size());
  }
  plan_units(trace, sizes, options.coalesce_bytes, schedule);
  plan_gathers(trace, options.gather_budget, schedule);
  plan_reductions(trace, options.reduce_budget, schedule);
  return schedule;
}

}  // namespace tessera::schedule
