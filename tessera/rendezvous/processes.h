// A run of several processes on this node, started by the program itself.
#pragma once
#include <chrono>
#include <functional>

namespace tessera::rendezvous {

// Starts this program's own command line once a rank, with torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK,
// MASTER_ADDR, MASTER_PORT: one reserved for them), and waits for all. Signals that ask to end (stop_requests.h,
// SIGHUP) are passed on; ranks start with those of stop_requests.h blocked and call accept_stop_signals. The ranks end
// with this process. A rank that a signal ended gets its line here. When one has failed the others get `grace` to see
// it themselves, and one second after a second request to stop; those that are left then are killed. Returns 0 when all
// ended so, else the exit code of the first that did not. `stop_requested`: whether a request has arrived that this
// function has not seen, before it began for instance; the ranks then get SIGTERM. Errors: a process cannot be started.
int run_processes(int ranks, std::chrono::milliseconds grace, const std::function<bool()>& stop_requested = {});

}  // namespace tessera::rendezvous
