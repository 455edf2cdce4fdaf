// A board: what every rank last said of itself, readable by all without the other's help.
#pragma once
#include <cstddef>
#include <string>

namespace tessera::rendezvous {

constexpr std::size_t kLongestStatus = std::size_t{1} << 17;  // bytes

// Any thread may use it. Neither call blocks on a peer, and peers need not call anything for statuses to reach them:
// they may be stuck in a collective. A status takes some milliseconds on mpi; there each costs a message a rank, and
// one that a newer one overtakes may never arrive. A rank that has failed still reads what had arrived.
class Board {
 public:
  virtual ~Board() = default;
  // Replaces this rank's status. Errors: longer than kLongestStatus.
  virtual void post(std::string status) = 0;
  // The newest status of world rank `rank` that has arrived here, this rank's own too; empty when there is none.
  // Errors: no such rank.
  virtual std::string read(int rank) const = 0;
};

// For backends: throw what post() of `rank` and read() on `ranks` ranks throw.
void check_status(const std::string& status, int rank);
void check_reader(int rank, int ranks);

}  // namespace tessera::rendezvous
