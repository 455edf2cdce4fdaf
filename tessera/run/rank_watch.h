// Watches the ranks of a run if ranks are processes. If a rank ends or hangs, reports how the run continues without
// this rank.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "tessera/comm/communicator.h"
#include "tessera/rendezvous/peer_watch.h"
#include "tessera/run/hang_watch.h"
#include "tessera/run/run_setup.h"
#include "tessera/run/stop_vote.h"

namespace tessera::run {

// leave() may be called by any thread.
class RankWatch {
 public:
  RankWatch() = default;
  // Calls leave().
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // Starts the watch. Collective over `group`, which must contain all ranks. If a rank ends without a call of leave(),
  // the lowest remaining rank prints lost_ranks_text (lost_ranks.h) to stderr, and writes resume-without.json to the
  // run's folder. `setup` must outlive the watch.
  void start(comm::Communicator& group, const RunSetup& setup, const StopRequested& stop_requested);
  // Ends the watch, so that the other ranks do not report the end of this rank. `error` is the message of the error
  // that ends this rank, or empty. After a GPU error (is_device_failure) this call does nothing, and the place of this
  // rank counts as dead.
  //
  // If this rank has waited for other ranks until the time limit, the first call with an error takes a few seconds, in
  // which the rank that hangs is reported (hang_watch.h).
  void leave(std::string_view error = "");
  // Returns whether leave() has reported the rank that hangs, so that the error of this rank need not be printed.
  bool is_hang_reported();

 private:
  std::mutex mutex_;
  bool has_failed_device_ = false, has_left_ = false, is_hang_reported_ = false;
  std::optional<TablePrinter> table_;  // if there is one rank
  std::unique_ptr<HangWatch> hangs_;   // outlives watch_, whose thread uses it
  std::unique_ptr<rendezvous::PeerWatch> watch_;
};

// Returns whether the message describes a GPU error other than lack of memory.
bool is_device_failure(std::string_view message);

}  // namespace tessera::run
