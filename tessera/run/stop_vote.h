// A vote of all ranks, between steps, on whether to stop the run early.
#pragma once
#include <functional>

#include "tessera/comm/communicator.h"

namespace tessera::run {

// Returns whether this process has received a request to stop its run. All rank threads of the process call the
// function.
using StopRequested = std::function<bool()>;

// Used between steps. Within steps, TrafficSum transfers the requests to stop. At most one vote is in flight. The
// object must outlive the communicator's lane.
class StopVote {
 public:
  // Collective over `world`. Blocks. Returns true on every rank if `stop_requested` is true on any rank.
  bool any(bool stop_requested, comm::Communicator& world);

 private:
  double votes_ = 0;
};

}  // namespace tessera::run
