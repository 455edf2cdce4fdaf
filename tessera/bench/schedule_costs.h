// What a timed step costs on a `local` link; and the shortest that such a step can be. Pure.
#pragma once
#include <vector>

#include "tessera/comm/local/link.h"
#include "tessera/schedule/simulate.h"

namespace tessera::bench {

struct Degrees {
  int tp = 1, gtp = 2, dp = 1;
  int ranks() const { return tp * gtp * dp; }
};

// segments: by event of the trace, how long the program computed before it. What the ranks compare on demand at
// the end of a microbatch stands with its last event; what they compare before each gather on demand, in the gather.
// Exact for ranks of equal parts, parameters that move over gtp alone, gradients that are added in rank order, and on
// demand for units of one.
schedule::Costs exact_costs(const comm::Link& link, const Degrees& degrees, const schedule::Trace& trace,
                            const std::vector<schedule::ParameterSize>& sizes, const schedule::Schedule& schedule,
                            std::vector<double> segments, bool on_demand);

// The longest chain of things that wait for each other, from one step's first publish to the next one's: the program in
// its order; each weight gathered once, after its publish, in the order of need; each gradient reduced when it is
// produced, one after the other. No arena limits it, so no schedule is faster where the costs are each rank's. Seconds.
double longest_path(const schedule::Trace& trace, const schedule::Schedule& schedule, const schedule::Costs& costs);

}  // namespace tessera::bench
