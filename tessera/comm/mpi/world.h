// Ranks as processes under mpirun or srun. One progress thread a process makes every MPI call and never spins, so more
// ranks than cores work.
#pragma once
#include <chrono>
#include <memory>

#include "tessera/comm/world.h"
#include "tessera/rendezvous/connecting.h"

namespace tessera::comm {

// False where the library was built without MPI (no_mpi.cpp: make_mpi_world then throws InputError).
bool mpi_available();
// Initialises MPI; one world a process. Its destructor finalises MPI after a clean run; after an error it leaves MPI
// alone and the caller ends the process with abort_mpi. Both wait for all ranks, for the longer of options.timeout and
// `connecting` each. When that has passed (a rank has stopped, or never came) a line on stderr says so and the process
// ends with exit code 1: MPI cannot be left then. What the process has printed is flushed.
std::unique_ptr<World> make_mpi_world(const WorldOptions& options,
                                      std::chrono::milliseconds connecting = rendezvous::kConnecting);
// Ends all ranks of the job that can be reached: MPI_Abort with this exit code. Does not return.
[[noreturn]] void abort_mpi(int exit_code);

}  // namespace tessera::comm
