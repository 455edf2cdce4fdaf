// When a lane begins and ends an operation, for whoever draws what the lanes did.
#pragma once
#include <atomic>
#include <limits>
#include <memory>

#include "tessera/base/fence.h"
#include "tessera/base/lane.h"

namespace tessera::base {

// Of a stream the two fences, of a host's lane the two times in seconds of its clock.
struct LaneTimes {
  // Written by the lane; NaN before.
  std::atomic<double> begin = std::numeric_limits<double>::quiet_NaN();
  std::atomic<double> end = std::numeric_limits<double>::quiet_NaN();
  Fence begin_fence, end_fence;
};

// The place of one operation, for the lane that carries it out. A copy marks the same place; a default-made one marks
// nothing.
class LaneMark {
 public:
  LaneMark() = default;
  explicit LaneMark(std::shared_ptr<LaneTimes> times) : times_(std::move(times)) {}
  // Enqueues: the operation begins when `lane` comes here. Of several calls the first counts.
  void begin(Lane& lane) const;
  // Enqueues: it ends here; of several calls the last counts. Returns a fence behind the mark, `done` without one.
  Fence end(Lane& lane, const Fence& done) const;

 private:
  std::shared_ptr<LaneTimes> times_;
};

}  // namespace tessera::base
