// Runs a planned step and compares the run with the plan.
#pragma once
#include "tessera/plan/step_plan.h"

namespace tessera::plan {

// Plans the request, and runs it with ranks as threads up to its fourth step, which follows a schedule. Expects that
// the events, the bytes that all ranks receive, and the arenas equal those of the plan. Also expects that the bytes of
// the plan's roles have the correct sum. Returns the plan.
StepPlan expect_as_planned(const StepPlanRequest& request);

}  // namespace tessera::plan
