// When the program's collectives end, and how long compute waits for them.
#pragma once
#include <vector>

#include "tessera/schedule/simulate.h"

namespace tessera::schedule {

// Each begins at its event, or behind the one before it where that takes longer, and is waited for behind
// Costs::comm_waits. Any number of steps one after another.
class CollectivesInTime {
 public:
  // costs outlives this. events: of a step.
  CollectivesInTime(const Costs& costs, int events) : costs_(costs), due_(static_cast<std::size_t>(events)) {}

  // The event `index` has happened at `now`, in seconds. Returns until when compute waits: `now`, or later.
  double happened(int index, double now);

 private:
  const Costs& costs_;
  std::vector<std::vector<double>> due_;  // by event: ends of what is waited for behind it
  double end_ = 0;                        // of the last one
};

}  // namespace tessera::schedule
