// A board of rank threads: memory they share.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/rendezvous/board.h"

namespace tessera::rendezvous {

class LocalNotices {
 public:
  explicit LocalNotices(int ranks) : notices_(static_cast<std::size_t>(ranks)) {}

  int ranks() const { return static_cast<int>(notices_.size()); }
  void post(int rank, std::string notice);
  std::string read(int rank) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> notices_;  // by rank
};

std::unique_ptr<Board> make_local_board(std::shared_ptr<LocalNotices> notices, int rank);

}  // namespace tessera::rendezvous
