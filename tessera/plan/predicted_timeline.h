// Writes a predicted step in Chrome's trace-event format, which Perfetto opens, with one row per lane.
#pragma once
#include <nlohmann/json.hpp>

#include "tessera/plan/step_plan.h"

namespace tessera::plan {

// Returns the content of the file, in the format of trace_events.h. Process 0 represents all ranks. The args of a
// gather or reduction are its bytes and the names of its weights.
nlohmann::ordered_json timeline_json(const StepPlan& step);

}  // namespace tessera::plan
