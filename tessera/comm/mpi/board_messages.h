// Sends and receives the statuses of boards (rendezvous/boards/board.h) between MPI processes.
#pragma once
#include <mpi.h>

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/rendezvous/boards/board.h"

namespace tessera::comm {

// All boards share one MPI communicator. A board's number is the tag of its messages. For each board and peer, at most
// one status is in flight. The next status is sent when the peer has received the previous status, so statuses do not
// accumulate.
class MpiBoardMessages {
 public:
  MpiBoardMessages(int rank, int size) : rank_(rank), size_(size) {}

  // Any thread may call the functions from open() to is_idle(). Every rank opens its boards in the same order.
  int open();
  void close(int board);  // statuses that are not in flight yet are not sent
  void post(int board, std::string status);
  std::string read(int board, int rank) const;
  bool is_idle() const;  // whether no status from or to this rank was in flight at the last poll()

  // Called by the progress thread. Starts and completes messages without waiting. Returns whether a message was started
  // or completed. Throws Error if MPI fails.
  bool poll(MPI_Comm comm);
  // Called by the progress thread after a failure, instead of poll(). Returns whether no status is being received.
  bool finish_receives();

  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  using Status = std::shared_ptr<const std::string>;
  struct Slot {
    Status newest = nullptr;      // a peer's newest status that has arrived, or this rank's own
    std::int64_t arrived_as = 0;  // number of the message that brought `newest`
    std::int64_t sent = 0;        // version of this rank's status that was last sent to the peer
    bool is_pending = false;      // whether a status to the peer is in flight
  };
  struct BoardStatuses {
    std::int64_t version = 0;  // version of this rank's status
    std::vector<Slot> slots;   // by rank
  };
  struct Message {
    int board = 0, peer = 0;
    std::int64_t number = 0;  // for a received message: the number of the message in the order of MPI's matching
    std::shared_ptr<const std::string> text;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  BoardStatuses& statuses_of(int board);
  bool complete_sends();
  bool start_sends(MPI_Comm comm);
  bool start_receives(MPI_Comm comm);
  bool complete_receives();

  const int rank_, size_;
  mutable std::mutex mutex_;
  int opened_ = 0;
  std::map<int, BoardStatuses> boards_;  // open boards, and boards that only peers have opened so far
  std::size_t pending_ = 0;
  // Only the progress thread accesses the members below. Lists are used because MPI keeps the addresses of the
  // requests.
  std::list<Message> sends_, receives_;
  std::int64_t received_ = 0;
};

std::unique_ptr<rendezvous::Board> make_mpi_board(std::shared_ptr<MpiBoardMessages> board_messages);

}  // namespace tessera::comm
