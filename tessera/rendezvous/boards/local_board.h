// A board for ranks that are threads of one process. The statuses are stored in memory that the ranks share.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/rendezvous/boards/board.h"

namespace tessera::rendezvous {

class LocalStatuses {
 public:
  explicit LocalStatuses(int ranks) : statuses_(static_cast<std::size_t>(ranks)) {}

  int ranks() const { return static_cast<int>(statuses_.size()); }
  void post(int rank, std::string status);
  std::string read(int rank) const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> statuses_;  // by rank
};

std::unique_ptr<Board> make_local_board(std::shared_ptr<LocalStatuses> statuses, int rank);

}  // namespace tessera::rendezvous
