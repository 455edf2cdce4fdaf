// An agreement of all ranks, between steps, to stop a run early.
#pragma once
#include <functional>

#include "tessera/comm/communicator.h"

namespace tessera::run {

// Returns whether this process was asked to stop its run. The threads of all its ranks call it.
using StopRequested = std::function<bool()>;

// Used between steps; within steps, TrafficSum transfers the requests. At most one vote is in flight. The object must
// outlive the communicator's lane.
class StopVote {
 public:
  // Collective over `world`; blocks. Returns true on every rank if any rank was asked to stop.
  bool any(bool asked, comm::Communicator& world);

 private:
  double votes_ = 0;
};

}  // namespace tessera::run
