// The training loop of one rank.
#pragma once
#include "tessera/comm/world.h"
#include "tessera/run/run_files.h"
#include "tessera/run/run_setup.h"
#include "tessera/run/stop_vote.h"

namespace tessera::run {

// Collective over the world; every rank has the same setup. `files`: on rank 0, null on the others. Trains from
// setup.first_step to config.steps, evaluates and saves as the setup says; the last step is always saved.
// `stop_requested`: once it returns true on any rank, all ranks finish the steps that they have begun and the
// evaluation or checkpoint that is due, save the last step if that is not done yet, and return. Errors: Error with the
// rank and the operation; several steps in a row without a finite gradient; a step that was suppressed several times in
// a row.
void run_training(comm::World& world, const RunSetup& setup, RunFiles* files, const StopRequested& stop_requested);

}  // namespace tessera::run
