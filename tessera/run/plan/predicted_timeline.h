// A predicted step in Chrome's trace-event format, which Perfetto opens: one row a lane.
#pragma once
#include <nlohmann/json.hpp>

#include "tessera/run/plan/step_plan.h"

namespace tessera::run {

// As trace_events.h has it; process 0 stands for every rank. args: bytes of gathers and reductions, and the weights'
// names.
nlohmann::ordered_json timeline_json(const StepPlan& step);

}  // namespace tessera::run
