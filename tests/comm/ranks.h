// Runs a test body on a number of ranks. The ranks are threads of this process, or the first of the started processes.
// Ranks are processes under mpirun with TESSERA_TEST_BACKEND=mpi, and in test_comm_nccl.
#pragma once
#include <functional>
#include <memory>

#include "tessera/base/device.h"
#include "tessera/comm/local/world.h"
#include "tessera/comm/world.h"

namespace tessera::comm {

// The world of the processes, or null if ranks are threads. main() sets it.
std::unique_ptr<World>& world_of_tests();

// The device of the operands of collectives: the CPU, unless main() sets another device.
base::Device& device_of_tests();

// Returns whether the test can use `ranks` ranks. Always true if ranks are threads. If ranks are processes, true if
// enough processes were started.
bool has_ranks(int ranks);
// Calls body(group) on each of `ranks` ranks, with a communicator over these ranks. Other processes do nothing. If
// ranks are threads, `options` are the options of run_local.
void on_ranks(int ranks, const std::function<void(Communicator&)>& body, const LocalOptions& options = {});
// Calls body(world) with worlds of 1 to 8 ranks. If ranks are processes, calls `body` only with the world of the
// processes.
void on_worlds(const std::function<void(World&)>& body);
// Makes a communicator of the ranks 0 to `ranks` - 1, with the name "test".
std::unique_ptr<Communicator> make_whole_group(World& world, int ranks);

}  // namespace tessera::comm
