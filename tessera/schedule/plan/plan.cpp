#include "tessera/schedule/plan/plan.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::schedule {
namespace {

int body_of(const Trace& trace) {
  const auto first = std::ranges::find(trace, EventKind::publish, &Event::kind);
  const bool ends = std::all_of(first, trace.end(), [](const Event& event) { return event.microbatch < 0; });
  TESSERA_CHECK(ends, "a schedule needs the optimizer's publishes behind every microbatch, found one before");
  return static_cast<int>(first - trace.begin());
}

}  // namespace

Schedule plan(const Trace& trace, const std::vector<ParameterSize>& sizes, const PlanOptions& options) {
  Schedule schedule;
  schedule.events = static_cast<int>(trace.size());
  schedule.body = body_of(trace);
  schedule.trace_hash = hash_trace(trace);
  for (const Event& event : trace) {
    schedule.kind = event.step;
    schedule.microbatches = std::max(schedule.microbatches, event.microbatch + 1);
    TESSERA_CHECK(event.parameter < static_cast<int>(sizes.size()), "the trace names parameter {} of {}",
                  event.parameter, sizes.size());
  }
  plan_units(trace, sizes, options.coalesce_bytes, schedule);
  plan_gathers(trace, options.gather_budget, schedule);
  plan_reductions(trace, options.reduce_budget, schedule);
  return schedule;
}

}  // namespace tessera::schedule
