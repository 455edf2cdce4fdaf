// The training loop of one rank.
#pragma once
#include "tessera/comm/world.h"
#include "tessera/run/run_files.h"
#include "tessera/run/run_setup.h"
#include "tessera/run/stop_vote.h"

namespace tessera::run {

// Collective over the world. Every rank passes the same setup, and its process has called set_up_process. `files` is
// set on rank 0 and null on the other ranks. Trains from setup.first_step to config.steps. Evaluates and saves
// checkpoints as the settings require, and always saves the last step. After `stop_requested` returns true on any rank,
// all ranks finish the pending steps and the checkpoint, and end an evaluation. They save the last step if it is not
// saved yet, and return. A save that fails with checkpoint::AgreedError does not end the run. Throws base::OutOfMemory
// if an allocation fails before the first step, and checkpoint::AgreedError if the last save failed, or if
// config.save_failures saves in a row failed. Throws Error for: a later failed allocation; a failed operation, with the
// rank and the operation; several steps in a row with gradients that are not finite; a step that is suppressed several
// times in a row.
void run_training(comm::World& world, const RunSetup& setup, RunFiles* files, const StopRequested& stop_requested);

}  // namespace tessera::run
