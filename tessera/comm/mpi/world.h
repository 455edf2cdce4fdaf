// Ranks as processes under mpirun or srun. In each process one progress thread makes every MPI call. The progress
// thread does not spin, so there can be more ranks than cores.
#pragma once
#include <chrono>
#include <memory>
#include <optional>

#include "tessera/comm/world.h"
#include "tessera/rendezvous/connecting.h"

namespace tessera::comm {

// Returns false if the library was built without MPI. make_mpi_world then throws InputError (no_mpi.cpp).
bool mpi_available();
// Initialises MPI. A process can have only one world. The world's destructor finalises MPI after a run without failure.
// After an error the progress thread makes no more MPI calls, and the caller ends the process with abort_mpi.
//
// Initialisation and finalisation each wait for all ranks, for at most the longer of options.timeout and `connecting`.
// If a rank stopped or did not start, the process flushes its output, prints a line to stderr and exits with code 1.
// The process does not throw, because it cannot leave MPI.
//
// `takes_part` is set on all processes or on no process. If it is set, the processes with true form one world, in the
// order of their MPI ranks. The processes with false form a second world. The destructor of the second world waits
// without a time limit until the first world ends.
std::unique_ptr<World> make_mpi_world(const WorldOptions& options,
                                      std::chrono::milliseconds connecting = rendezvous::kConnecting,
                                      std::optional<bool> takes_part = std::nullopt);
// Calls MPI_Abort with this exit code, which ends all reachable ranks of the job. Does not return.
[[noreturn]] void abort_mpi(int exit_code);

}  // namespace tessera::comm
