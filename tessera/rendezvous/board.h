// A board stores the last status of every rank. A rank can read the status of another rank without its help.
#pragma once
#include <cstddef>
#include <string>

namespace tessera::rendezvous {

constexpr std::size_t kLongestStatus = std::size_t{1} << 17;  // bytes

// Any thread may use a board. post() and read() do not block on a peer. Peers need not call any function for statuses
// to reach them, so they may be stuck in a collective. On mpi a status takes some milliseconds and costs one message to
// each rank. A status that a newer one replaces may never arrive there. A rank that has failed can still read the
// statuses that arrived before.
class Board {
 public:
  virtual ~Board() = default;
  // Replaces this rank's status. Throws Error if the status is longer than kLongestStatus.
  virtual void post(std::string status) = 0;
  // Returns the newest status of world rank `rank` that has arrived on this rank; `rank` may be this rank. Returns an
  // empty string if no status has arrived. Throws Error if `rank` is not in the world.
  virtual std::string read(int rank) const = 0;
};

// Used by implementations of Board. check_status and check_reader throw the errors of post() on rank `rank`, and of
// read(rank) with `ranks` ranks.
void check_status(const std::string& status, int rank);
void check_reader(int rank, int ranks);

}  // namespace tessera::rendezvous
