// Records when a lane begins and ends an operation, for timelines.
#pragma once
#include <atomic>
#include <limits>
#include <memory>

#include "tessera/base/lanes/fence.h"
#include "tessera/base/lanes/lane.h"

namespace tessera::base {

// The start and the end of one operation. A stream sets the two fences. A lane of the host sets the two times, in
// seconds of its clock.
struct LaneTimes {
  // The lane writes the times. A time that is not written yet is NaN.
  std::atomic<double> begin = std::numeric_limits<double>::quiet_NaN();
  std::atomic<double> end = std::numeric_limits<double>::quiet_NaN();
  Fence begin_fence, end_fence;
};

// Marks the start and the end of one operation on the lane that executes the operation. Copies of a mark belong to the
// same operation. A default-constructed mark does nothing.
class LaneMark {
 public:
  LaneMark() = default;
  explicit LaneMark(std::shared_ptr<LaneTimes> times) : times_(std::move(times)) {}
  // Enqueues work on `lane` that records the time as the operation's start. Only the first call has an effect.
  void begin(Lane& lane) const;
  // Enqueues work on `lane` that records the time as the operation's end. A later call replaces the time. Returns a
  // fence after this work. A default-constructed mark returns `done`.
  Fence end(Lane& lane, const Fence& done) const;

 private:
  std::shared_ptr<LaneTimes> times_;
};

}  // namespace tessera::base
