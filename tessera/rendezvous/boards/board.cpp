#include "tessera/rendezvous/boards/board.h"

#include "tessera/base/error.h"

namespace tessera::rendezvous {

void check_status(const std::string& status, int rank) {
  if (status.size() > kLongestStatus)
    throw Error("board, rank {}: expected a status of at most {} bytes, got {}", rank, kLongestStatus, status.size());
}

void check_reader(int rank, int ranks) {
  if (rank < 0 || rank >= ranks) throw Error("board: expected a rank in [0, {}), got {}", ranks, rank);
}

}  // namespace tessera::rendezvous
