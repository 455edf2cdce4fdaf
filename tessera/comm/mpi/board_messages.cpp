#include "tessera/comm/mpi/board_messages.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/mpi/task.h"
#include "tessera/comm/received_length.h"

namespace tessera::comm {
namespace {

constexpr int kMaxBoards = 32767;  // the smallest tag limit the standard allows

bool is_complete(MPI_Request& request) {
  int done = 0;
  check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  return done != 0;
}

class MpiBoard final : public rendezvous::Board {
 public:
  explicit MpiBoard(std::shared_ptr<MpiBoardMessages> board_messages)
      : board_messages_(std::move(board_messages)), number_(board_messages_->open()) {}
  ~MpiBoard() override { board_messages_->close(number_); }

  void post(std::string status) override {
    rendezvous::check_status(status, board_messages_->rank());
    board_messages_->post(number_, std::move(status));
  }
  std::string read(int rank) const override {
    rendezvous::check_reader(rank, board_messages_->size());
    return board_messages_->read(number_, rank);
  }

 private:
  const std::shared_ptr<MpiBoardMessages> board_messages_;
  const int number_;
};

}  // namespace

int MpiBoardMessages::open() {
  std::lock_guard lock(mutex_);
  TESSERA_CHECK(opened_ < kMaxBoards, "boards: expected at most {} in one run", kMaxBoards);
  statuses_of(opened_);
  return opened_++;
}

void MpiBoardMessages::close(int board) {
  std::lock_guard lock(mutex_);
  boards_.erase(board);
}

MpiBoardMessages::BoardStatuses& MpiBoardMessages::statuses_of(int board) {
  BoardStatuses& notes = boards_[board];
  notes.slots.resize(static_cast<std::size_t>(size_));
  return notes;
}

void MpiBoardMessages::post(int board, std::string status) {
  std::lock_guard lock(mutex_);
  BoardStatuses& notes = statuses_of(board);
  ++notes.version;
  notes.slots[static_cast<std::size_t>(rank_)].newest = std::make_shared<const std::string>(std::move(status));
}

std::string MpiBoardMessages::read(int board, int rank) const {
  Status status;
  {
    std::lock_guard lock(mutex_);
    status = boards_.at(board).slots[static_cast<std::size_t>(rank)].newest;
  }
  return status == nullptr ? std::string() : *status;
}

bool MpiBoardMessages::is_idle() const {
  std::lock_guard lock(mutex_);
  return pending_ == 0;
}

bool MpiBoardMessages::poll(MPI_Comm comm) {
  bool moved = complete_sends();
  moved = start_sends(comm) || moved;
  moved = start_receives(comm) || moved;
  moved = complete_receives() || moved;
  std::lock_guard lock(mutex_);
  pending_ = sends_.size() + receives_.size();
  return moved;
}

bool MpiBoardMessages::finish_receives() {
  complete_receives();
  return receives_.empty();
}

bool MpiBoardMessages::complete_sends() {
  return std::erase_if(sends_, [this](Message& message) {
           if (!is_complete(message.request)) return false;
           std::lock_guard lock(mutex_);
           const auto board = boards_.find(message.board);
           if (board != boards_.end()) board->second.slots[static_cast<std::size_t>(message.peer)].is_pending = false;
           return true;
         }) > 0;
}

bool MpiBoardMessages::start_sends(MPI_Comm comm) {
  std::list<Message> fresh;
  {
    std::lock_guard lock(mutex_);
    for (auto& [number, notes] : boards_)
      for (int peer = 0; peer < size_; ++peer) {
        Slot& slot = notes.slots[static_cast<std::size_t>(peer)];
        if (peer == rank_ || slot.is_pending || slot.sent == notes.version) continue;
        slot.is_pending = true;
        slot.sent = notes.version;
        fresh.push_back({.board = number, .peer = peer, .text = notes.slots[static_cast<std::size_t>(rank_)].newest});
      }
    pending_ += fresh.size();
  }
  for (Message& message : fresh)  // synchronous send: completes when the peer has matched it
    check_mpi(MPI_Issend(message.text->data(), static_cast<int>(message.text->size()), MPI_CHAR, message.peer,
                         message.board, comm, &message.request),
              "MPI_Issend");
  const bool any = !fresh.empty();
  sends_.splice(sends_.end(), fresh);
  return any;
}

bool MpiBoardMessages::start_receives(MPI_Comm comm) {
  bool any = false;
  for (int looks = 0; looks < size_; ++looks) {
    int found = 0, bytes = 0;
    MPI_Message matched = MPI_MESSAGE_NULL;
    MPI_Status status;
    check_mpi(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &found, &matched, &status), "MPI_Improbe");
    if (found == 0) break;
    any = true;
    check_mpi(MPI_Get_count(&status, MPI_CHAR, &bytes), "MPI_Get_count");
    const auto text = std::make_shared<std::string>(
        received_length(bytes, rendezvous::kLongestStatus, "bytes of a status", status.MPI_SOURCE), '\0');
    received_length(status.MPI_TAG, kMaxBoards - 1, "as the number of a board", status.MPI_SOURCE);
    Message& message = receives_.emplace_back(
        Message{.board = status.MPI_TAG, .peer = status.MPI_SOURCE, .number = ++received_, .text = text});
    check_mpi(MPI_Imrecv(text->data(), bytes, MPI_CHAR, &matched, &message.request), "MPI_Imrecv");
  }
  return any;
}

bool MpiBoardMessages::complete_receives() {
  return std::erase_if(receives_, [this](Message& message) {
           if (!is_complete(message.request)) return false;
           std::lock_guard lock(mutex_);
           if (message.board < opened_ && !boards_.contains(message.board))
             return true;  // this rank has closed the board
           Slot& slot = statuses_of(message.board).slots[static_cast<std::size_t>(message.peer)];
           if (message.number < slot.arrived_as) return true;  // a newer status has arrived
           slot.arrived_as = message.number;
           slot.newest = std::move(message.text);
           return true;
         }) > 0;
}

std::unique_ptr<rendezvous::Board> make_mpi_board(std::shared_ptr<MpiBoardMessages> board_messages) {
  return std::make_unique<MpiBoard>(std::move(board_messages));
}

}  // namespace tessera::comm
