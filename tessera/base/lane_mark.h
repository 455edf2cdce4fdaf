// Notes when a lane begins and ends an operation. A timeline reads it.
#pragma once
#include <atomic>
#include <limits>
#include <memory>

#include "tessera/base/fence.h"
#include "tessera/base/lane.h"

namespace tessera::base {

// When one operation began and ended. A stream fills in the two fences; a lane of the host fills in the two times, in
// seconds of its clock.
struct LaneTimes {
  // The lane writes these; until then they are NaN.
  std::atomic<double> begin = std::numeric_limits<double>::quiet_NaN();
  std::atomic<double> end = std::numeric_limits<double>::quiet_NaN();
  Fence begin_fence, end_fence;
};

// Marks the beginning and the end of one operation on the lane that carries it out. A copy marks the same operation; a
// default-constructed mark does nothing.
class LaneMark {
 public:
  LaneMark() = default;
  explicit LaneMark(std::shared_ptr<LaneTimes> times) : times_(std::move(times)) {}
  // Enqueues a note that the operation begins when `lane` reaches this point. Only the first call counts.
  void begin(Lane& lane) const;
  // Enqueues a note that the operation ends when `lane` reaches this point. The last call counts. Returns a fence
  // behind the note; without a note it returns `done`.
  Fence end(Lane& lane, const Fence& done) const;

 private:
  std::shared_ptr<LaneTimes> times_;
};

}  // namespace tessera::base
