// The training loop of one rank.
#pragma once
#include "tessera/comm/world.h"
#include "tessera/run/run_files.h"
#include "tessera/run/run_plan.h"

namespace tessera::run {

// Collective over the world; every rank has the same plan. `files`: on rank 0, null on the others. Trains from
// plan.first_step to config.steps, evaluates and saves as the plan says; the last step is always saved. Errors: Error
// with the rank and the operation; several steps in a row without a finite gradient; a step that was suppressed several
// times in a row.
void run_training(comm::World& world, const RunPlan& plan, RunFiles* files);

}  // namespace tessera::run
