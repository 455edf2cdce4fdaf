// The statuses of a process's boards, on their way between MPI processes.
#pragma once
#include <mpi.h>

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/rendezvous/board.h"

namespace tessera::comm {

// All boards share one MPI communicator; a board's number is the tag. At most one status of a board is under way to
// each peer, and the next one starts when the peer has taken it: what no one takes does not pile up.
class MpiBoardMessages {
 public:
  MpiBoardMessages(int rank, int size) : rank_(rank), size_(size) {}

  // Any thread. Boards are opened in the same order on every rank.
  int open();
  void close(int board);  // what is not under way yet is not sent
  void post(int board, std::string status);
  std::string read(int board, int rank) const;
  bool is_idle() const;  // nothing is under way from or to this rank, as far as was seen

  // The progress thread: starts and completes what it can, without waiting. Returns whether anything moved. Errors: MPI
  // failed.
  bool look(MPI_Comm comm);

  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  using Status = std::shared_ptr<const std::string>;
  struct Slot {
    Status newest = nullptr;      // of a peer: that has arrived
    std::int64_t arrived_as = 0;  // number of that message
    std::int64_t sent = 0;        // to a peer: version of this rank's status
    bool under_way = false;       // to a peer
  };
  struct Notes {
    std::int64_t version = 0;  // of this rank's status
    std::vector<Slot> slots;   // by rank
  };
  struct Message {
    int board = 0, peer = 0;
    std::int64_t number = 0;  // of a received one: in the order of matching
    std::shared_ptr<const std::string> text;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  Notes& notes_of(int board);
  bool complete_sends();
  bool start_sends(MPI_Comm comm);
  bool start_receives(MPI_Comm comm);
  bool complete_receives();

  const int rank_, size_;
  mutable std::mutex mutex_;
  int opened_ = 0;
  std::map<int, Notes> boards_;  // the open ones, and those of peers that are ahead
  std::size_t under_way_ = 0;
  // The rest only the progress thread touches. Lists: MPI keeps the addresses of the requests.
  std::list<Message> sends_, receives_;
  std::int64_t received_ = 0;
};

std::unique_ptr<rendezvous::Board> make_mpi_board(std::shared_ptr<MpiBoardMessages> board_messages);

}  // namespace tessera::comm
