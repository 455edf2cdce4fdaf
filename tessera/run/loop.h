// The training loop of one rank.
#pragma once
#include "tessera/comm/world.h"
#include "tessera/run/run_files.h"
#include "tessera/run/run_setup.h"
#include "tessera/run/stop_vote.h"

namespace tessera::run {

// Collective over the world; every rank passes the same setup. `files` is set on rank 0 and null on the other ranks.
// Trains from setup.first_step to config.steps, and evaluates and saves as the setup requires; the last step is always
// saved. Once `stop_requested` returns true on any rank, all ranks finish the steps in flight and a pending evaluation
// or checkpoint, save the last step if it is not saved yet, and return. Throws Error, which names the rank and the
// operation, if an operation fails. Throws Error if several steps in a row have no finite gradient, or if one step is
// suppressed several times in a row.
void run_training(comm::World& world, const RunSetup& setup, RunFiles* files, const StopRequested& stop_requested);

}  // namespace tessera::run
