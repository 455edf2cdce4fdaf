#include "tessera/rendezvous/board.h"

#include "tessera/base/error.h"

namespace tessera::rendezvous {

void check_notice(const std::string& notice, int rank) {
  if (notice.size() > kLongestNotice)
    throw Error("board, rank {}: expected a notice of at most {} bytes, got {}", rank, kLongestNotice, notice.size());
}

void check_reader(int rank, int ranks) {
  if (rank < 0 || rank >= ranks) throw Error("board: expected a rank in [0, {}), got {}", ranks, rank);
}

}  // namespace tessera::rendezvous
