#include "tessera/base/lanes/lane_mark.h"

#include <cmath>

namespace tessera::base {

void LaneMark::begin(Lane& lane) const {
  if (!times_) return;
  if (lane.stream()) {
    if (!times_->begin_fence.state()) times_->begin_fence = lane.record_timed();
    return;
  }
  lane.run([times = times_, clock = lane.clock()] {
    if (std::isnan(times->begin)) times->begin = seconds_on(clock);
  });
}

Fence LaneMark::end(Lane& lane, const Fence& done) const {
  if (!times_) return done;
  if (lane.stream()) return times_->end_fence = lane.record_timed();
  lane.run([times = times_, clock = lane.clock()] { times->end = seconds_on(clock); });
  return lane.record();
}

}  // namespace tessera::base
