// Runs a test body on a number of ranks: threads of this process, or the first of the processes that this one is among
// (under mpirun with TESSERA_TEST_BACKEND=mpi; test_comm_nccl).
#pragma once
#include <functional>
#include <memory>

#include "tessera/base/device.h"
#include "tessera/comm/world.h"

namespace tessera::comm {

// The processes' world, null where ranks are threads. Set by main.
std::unique_ptr<World>& world_of_tests();

// Where operands of collectives lie: the CPU, unless main says otherwise.
base::Device& device_of_tests();

// Whether to test with `ranks`: always as threads; else up to the number of processes.
bool has_ranks(int ranks);
// Calls body(group) on each of `ranks` ranks with a communicator over them. Processes beyond them do nothing.
void on_ranks(int ranks, const std::function<void(Communicator&)>& body);
// Calls body(world) with worlds of 1 to 8 ranks, of processes with the one there is.
void on_worlds(const std::function<void(World&)>& body);
// A group of ranks 0 ... size - 1, named "test".
std::unique_ptr<Communicator> make_whole_group(World& world, int ranks);

}  // namespace tessera::comm
