// A run of several processes on this node, started by the program itself.
#pragma once
#include <chrono>

namespace tessera::meet {

// Starts this program's own command line once a rank, with torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK,
// MASTER_ADDR, MASTER_PORT: one reserved for them), and waits for all. Signals that ask to end are passed on; the ranks
// end with this process. A rank that a signal ended gets its line here. When one has failed the others get `grace` to
// see it themselves; those that are left then are killed. Returns 0 when all ended so, else the exit code of the first
// that did not. Errors: a process cannot be started.
int run_processes(int ranks, std::chrono::milliseconds grace);

}  // namespace tessera::meet
