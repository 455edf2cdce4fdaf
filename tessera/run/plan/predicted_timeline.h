// A predicted step in Chrome's trace-event format, which Perfetto opens: one row per lane.
#pragma once
#include <nlohmann/json.hpp>

#include "tessera/run/plan/step_plan.h"

namespace tessera::run {

// Returns the content of the file, in the format of trace_events.h. Process 0 represents every rank. args: bytes of
// gathers and reductions, and the weights' names.
nlohmann::ordered_json timeline_json(const StepPlan& step);

}  // namespace tessera::run
