// Computes when the program's collectives end, and how long compute waits for them.
#pragma once
#include <vector>

#include "tessera/schedule/simulate.h"

namespace tessera::schedule {

// A collective begins at its event, or at the end of the previous collective if that is later. Compute waits for the
// collective after the event that Costs::comm_waits gives. One object computes any number of consecutive steps.
class CollectivesInTime {
 public:
  // `costs` outlives the object. `events` is the number of events of a step.
  CollectivesInTime(const Costs& costs, int events) : costs_(costs), due_(static_cast<std::size_t>(events)) {}

  // Records that event `index` happened at the time `now` (seconds). Returns the time at which compute continues, which
  // is at least `now`.
  double happened(int index, double now);

 private:
  const Costs& costs_;
  std::vector<std::vector<double>> due_;  // by event: end times of collectives; compute waits for them after the event
  double end_ = 0;                        // end time of the last collective
};

}  // namespace tessera::schedule
