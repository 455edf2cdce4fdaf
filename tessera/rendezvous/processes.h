// Runs several processes on this node, started by the program itself.
#pragma once
#include <chrono>
#include <functional>

namespace tessera::rendezvous {

// Starts this program's command line once for each rank, with torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK,
// MASTER_ADDR, MASTER_PORT), and waits for all ranks. Reserves the port of MASTER_PORT on loopback for the ranks. Also
// draws an identity of the run (TESSERA_RUN_ID).
//
// Signals: the stop signals (stop_requests.h) are forwarded to the ranks, except ignored ones. Ranks start with the
// stop signals blocked and call accept_stop_signals. If this process dies, the ranks are killed. If `stop_requested`
// returns true, the ranks get SIGTERM. A caller uses `stop_requested` for requests that arrived before this function
// started.
//
// End: if a rank fails, the other ranks have the time `grace` to detect the failure and exit. After a second request to
// stop, the ranks have one second to exit. Ranks that still run after this time are killed. A line on stderr names each
// rank that a signal ended. Returns 0 if all ranks returned 0, otherwise the exit code of the first rank to fail.
// Throws Error if a process cannot be started.
int run_processes(int ranks, std::chrono::milliseconds grace, const std::function<bool()>& stop_requested = {});

}  // namespace tessera::rendezvous
