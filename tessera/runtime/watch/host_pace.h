// Measures how long compute waits for its host to enqueue work.
#pragma once
#include "tessera/base/lanes/fence.h"
#include "tessera/base/lanes/lane.h"

namespace tessera::runtime {

// Belongs to one rank; used by one thread. The host records a fence at every kEvents-th event of a step. If the fence
// is done at the next of these events, compute had finished all work before the fence, so compute kept pace with the
// host and waited for it.
class HostPace {
 public:
  static constexpr int kEvents = 8;  // recording a fence and testing it takes some microseconds

  void begin_step(bool is_measured) {
    is_measured_ = is_measured;
    events_ = 0;
    fence_ = {};
  }
  bool is_measured() const { return is_measured_; }
  // Called at each event of a measured step with the host's time in seconds. Returns the seconds since the last fence
  // if compute waited for the host, and otherwise 0.
  double passed(base::Lane& compute, double now) {
    if (events_++ % kEvents != 0 || compute.is_captured()) return 0;
    const double waited = fence_.state() != nullptr && fence_.done() ? now - recorded_ : 0;
    fence_ = compute.record();
    recorded_ = now;
    return waited;
  }

 private:
  bool is_measured_ = false;
  int events_ = 0;
  base::Fence fence_;
  double recorded_ = 0;  // the host's time at the fence
};

}  // namespace tessera::runtime
