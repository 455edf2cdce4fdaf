// Statuses by way of the run's store.
#pragma once
#include <memory>

#include "tessera/rendezvous/board.h"
#include "tessera/rendezvous/store.h"

namespace tessera::rendezvous {

// `store`: a connection of the board's own, under a prefix that this board has on every rank. One thread a board talks
// to it, so that post() and read() touch memory only; it asks for the statuses of ranks that are read, while they are.
// A store that is gone or silent leaves what had arrived. Destruction waits for a call under way, to its limit.
std::unique_ptr<Board> make_store_board(std::shared_ptr<Store> store, int rank, int ranks);

}  // namespace tessera::rendezvous
