// A board whose statuses are stored in the run's store.
#pragma once
#include <memory>

#include "tessera/rendezvous/boards/board.h"
#include "tessera/rendezvous/store.h"

namespace tessera::rendezvous {

// Makes a board. `store` is a separate connection. Its prefix is unique to the board and equal on every rank. The board
// has its own thread, which accesses the store, so post() and read() only access memory. The thread fetches the status
// of a rank only while the program reads this rank's status. If the store does not answer, read() returns the last
// status that arrived. Values in the store that post() cannot have written are ignored. The destructor waits for a
// pending call to the store, up to the call's time limit.
std::unique_ptr<Board> make_store_board(std::shared_ptr<Store> store, int rank, int ranks);

}  // namespace tessera::rendezvous
