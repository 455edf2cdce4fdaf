#include "tessera/rendezvous/boards/local_board.h"

#include <utility>

namespace tessera::rendezvous {
namespace {

class LocalBoard final : public Board {
 public:
  LocalBoard(std::shared_ptr<LocalStatuses> statuses, int rank) : statuses_(std::move(statuses)), rank_(rank) {}

  void post(std::string status) override {
    check_status(status, rank_);
    statuses_->post(rank_, std::move(status));
  }
  std::string read(int rank) const override {
    check_reader(rank, statuses_->ranks());
    return statuses_->read(rank);
  }

 private:
  const std::shared_ptr<LocalStatuses> statuses_;
  const int rank_;
};

}  // namespace

void LocalStatuses::post(int rank, std::string status) {
  std::lock_guard lock(mutex_);
  statuses_[static_cast<std::size_t>(rank)] = std::move(status);
}

std::string LocalStatuses::read(int rank) const {
  std::lock_guard lock(mutex_);
  return statuses_[static_cast<std::size_t>(rank)];
}

std::unique_ptr<Board> make_local_board(std::shared_ptr<LocalStatuses> statuses, int rank) {
  return std::make_unique<LocalBoard>(std::move(statuses), rank);
}

}  // namespace tessera::rendezvous
