// From a command line's settings to ranks that train.
#pragma once
#include <filesystem>
#include <string_view>

#include "tessera/base/env.h"
#include "tessera/run/config/config.h"
#include "tessera/run/stop_vote.h"

namespace tessera::run {

// Takes the backend and the mesh from the checkpoint that is resumed where no flag names them, plans the run, starts
// its ranks (`local`) or joins them (`mpi`), trains, and returns the exit code: 0 also for a run that ends early
// because `stop_requested` returned true (loop.h). Errors of the user's making are thrown as InputError before anything
// is written, the same on every rank. What fails while running is thrown as Error; under MPI it ends the process on
// every rank that can be reached, with one line each.
int launch(const TrainConfig& command, const std::filesystem::path& configs, const base::Environment& environment,
           const StopRequested& stop_requested);

// A launcher that started several processes needs a backend of processes, named in `expected`: anything else is an
// InputError.
void check_launcher(Backend backend, std::string_view expected = "mpi or nccl");

}  // namespace tessera::run
