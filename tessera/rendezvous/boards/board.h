// A board stores the last status text of every rank. A rank can read the status of another rank even if that rank is
// blocked.
#pragma once
#include <cstddef>
#include <string>

namespace tessera::rendezvous {

constexpr std::size_t kLongestStatus = std::size_t{1} << 17;  // in bytes

// Any thread may use a board. post() and read() do not block on a peer. A status reaches a peer even if the peer is
// blocked in a collective. On mpi a status takes some milliseconds and costs one message to each rank. If a rank posts
// a newer status, other ranks may never receive the older status. A rank that has failed can still read the statuses
// that arrived before the failure.
class Board {
 public:
  virtual ~Board() = default;
  // Replaces this rank's status. Throws Error if the status is longer than kLongestStatus.
  virtual void post(std::string status) = 0;
  // Returns the newest status of world rank `rank` that has arrived on this rank, or an empty string if no status has
  // arrived. `rank` may be this rank. Throws Error if `rank` is not in the world.
  virtual std::string read(int rank) const = 0;
};

// Used by implementations of Board. check_status throws the errors of post(status) on rank `rank`. check_reader throws
// the errors of read(rank) in a world of `ranks` ranks.
void check_status(const std::string& status, int rank);
void check_reader(int rank, int ranks);

}  // namespace tessera::rendezvous
