// Watches the ranks of a run that are processes, and reports how the run continues without ranks that end.
#pragma once
#include <memory>
#include <mutex>
#include <string_view>

#include "tessera/comm/communicator.h"
#include "tessera/rendezvous/peer_watch.h"
#include "tessera/run/run_setup.h"
#include "tessera/run/stop_vote.h"

namespace tessera::run {

// Any thread may call leave().
class RankWatch {
 public:
  RankWatch() = default;
  // Leaves.
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // Collective over `group`, which has all ranks. If a rank ends without leave(), the lowest remaining rank prints
  // lost_ranks_text (lost_ranks.h) to stderr and writes resume-without.json to the run's folder. `setup` must outlive
  // the watch.
  void start(comm::Communicator& group, const RunSetup& setup, const StopRequested& stop_requested);
  // Ends the watch. The other ranks do not report the end of this rank. `error`: the error that ends this rank, or
  // empty. After an error of its GPU, a rank does not leave: its place counts as dead.
  void leave(std::string_view error = "");

 private:
  std::mutex mutex_;
  bool has_failed_device_ = false;
  std::unique_ptr<rendezvous::PeerWatch> watch_;
};

// Returns whether the message reports an error of a GPU other than a lack of memory.
bool is_device_failure(std::string_view message);

}  // namespace tessera::run
