// Ranks as processes under mpirun or srun. One progress thread a process makes every MPI call and never spins, so more
// ranks than cores work.
#pragma once
#include <memory>

#include "tessera/comm/world.h"

namespace tessera::comm {

// False where the library was built without MPI (mpi_absent: make_mpi_world then throws InputError that says so).
bool mpi_available();
// Initialises MPI; one world a process. Its destructor finalises MPI after a clean run; after an error it leaves MPI
// alone and the caller ends the process with abort_mpi.
std::unique_ptr<World> make_mpi_world(const WorldOptions& options);
// Ends all ranks of the job that can be reached: MPI_Abort with this exit code. Does not return.
[[noreturn]] void abort_mpi(int exit_code);

}  // namespace tessera::comm
