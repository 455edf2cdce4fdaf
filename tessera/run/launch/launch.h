// Starts or joins the ranks of a training run, from the settings of a command line.
#pragma once
#include <filesystem>
#include <string_view>

#include "tessera/base/env.h"
#include "tessera/run/config/config.h"
#include "tessera/run/stop_vote.h"

namespace tessera::run {

// Plans the run, starts its ranks (`local`, and `nccl` without a launcher) or joins them, trains, and returns the exit
// code. Backend and mesh come from the resumed checkpoint if no flag gives them. The exit code is 0 also for a run that
// ends early because `stop_requested` returned true (loop.h). Throws InputError for user errors before anything is
// written, the same on every rank. Throws Error for failures during the run; under MPI, such a failure instead ends the
// process on every reachable rank, with one line each.
int launch(const TrainConfig& command, const std::filesystem::path& configs, const base::Environment& environment,
           const StopRequested& stop_requested);

// Throws InputError if a launcher started several processes but the ranks of `backend` are not processes. The message
// names the backends in `expected`.
void check_launcher(Backend backend, std::string_view expected = "mpi or nccl");

}  // namespace tessera::run
