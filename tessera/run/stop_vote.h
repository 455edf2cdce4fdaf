// How the ranks agree to stop a run early, between steps.
#pragma once
#include <functional>

#include "tessera/comm/communicator.h"

namespace tessera::run {

// Whether this process has been asked to stop its run. Called by the threads of all its ranks.
using StopRequested = std::function<bool()>;

// For moments outside of steps; within them TrafficSum carries the requests. One vote at a time. It must outlive the
// communicator's lane.
class StopVote {
 public:
  // Collective over `world`; waits. Returns whether any rank was asked to stop, the same on every rank.
  bool any(bool asked, comm::Communicator& world);

 private:
  double votes_ = 0;
};

}  // namespace tessera::run
