#include "tessera/rendezvous/local_board.h"

#include <utility>

namespace tessera::rendezvous {
namespace {

class LocalBoard final : public Board {
 public:
  LocalBoard(std::shared_ptr<LocalNotices> notices, int rank) : notices_(std::move(notices)), rank_(rank) {}

  void post(std::string notice) override {
    check_notice(notice, rank_);
    notices_->post(rank_, std::move(notice));
  }
  std::string read(int rank) const override {
    check_reader(rank, notices_->ranks());
    return notices_->read(rank);
  }

 private:
  const std::shared_ptr<LocalNotices> notices_;
  const int rank_;
};

}  // namespace

void LocalNotices::post(int rank, std::string notice) {
  std::lock_guard lock(mutex_);
  notices_[static_cast<std::size_t>(rank)] = std::move(notice);
}

std::string LocalNotices::read(int rank) const {
  std::lock_guard lock(mutex_);
  return notices_[static_cast<std::size_t>(rank)];
}

std::unique_ptr<Board> make_local_board(std::shared_ptr<LocalNotices> notices, int rank) {
  return std::make_unique<LocalBoard>(std::move(notices), rank);
}

}  // namespace tessera::rendezvous
