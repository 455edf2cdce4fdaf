// Runs the step that a plan describes, and compares the two.
#pragma once
#include "tessera/run/plan/step_plan.h"

namespace tessera::run {

// Plans the request and runs it on threads up to its fourth step, which has a schedule. Expects the events, the bytes
// that all ranks receive, and the arenas of the plan; and that the bytes of the plan's roles have the expected sum.
// Returns the plan.
StepPlan expect_as_planned(const StepPlanRequest& request);

}  // namespace tessera::run
