// Runs a test body on a number of ranks: threads of this process, or, when the test program runs under mpirun with
// TESSERA_TEST_BACKEND=mpi, the first of its processes.
#pragma once
#include <functional>
#include <memory>

#include "tessera/comm/world.h"

namespace tessera::comm {

// The processes' world when the tests run on mpi, else null. Set by main.
std::unique_ptr<World>& mpi_world_of_tests();

// Whether to test with `ranks`: always as threads; on mpi up to the number of processes, but 4 and fewer only where
// there are no more processes, which is quicker.
bool has_ranks(int ranks);
// Calls body(group) on each of `ranks` ranks with a communicator over them. Processes beyond them do nothing.
void on_ranks(int ranks, const std::function<void(Communicator&)>& body);
// Calls body(world) with worlds of 1 to 8 ranks, on mpi with the one there is.
void on_worlds(const std::function<void(World&)>& body);
// A group of ranks 0 ... size - 1, named "test".
std::unique_ptr<Communicator> make_whole_group(World& world, int ranks);

}  // namespace tessera::comm
