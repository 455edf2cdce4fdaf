// Starts or joins the ranks of a training run, from the settings of a command line.
#pragma once
#include <filesystem>

#include "tessera/base/env.h"
#include "tessera/run/stop_vote.h"
#include "tessera/settings/config.h"

namespace tessera::run {

// Checks the run, trains, and returns the exit code. Starts the ranks for `local`, and for `nccl` without a launcher;
// otherwise joins the ranks that a launcher started. If no flag sets the backend or the mesh, they come from the
// resumed checkpoint. The exit code is also 0 if the run stops early because `stop_requested` returned true (loop.h).
// User errors throw the same InputError on every rank, before any file is written. Failures during the run throw Error.
// Under MPI, such a failure instead ends the process of every reachable rank, and each process prints one line.
int launch(settings::TrainConfig command, const std::filesystem::path& configs, const base::Environment& environment,
           const StopRequested& stop_requested);

}  // namespace tessera::run
