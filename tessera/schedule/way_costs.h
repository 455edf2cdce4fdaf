// What the ways of a schedule's units take in time, for simulate.h.
#pragma once
#include <functional>

#include "tessera/schedule/simulate.h"

namespace tessera::schedule {

// Seconds of one message over the ranks of a hop, of which one receives so many bytes.
using HopSeconds = std::function<double(Activity activity, std::int64_t bytes)>;

// Writes gather, reduce, replica and publish seconds of `costs`. Members of a unit travel as one message a hop; sums
// over compute ranks and over replicas, and publishes, travel one by one.
void set_way_costs(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule,
                   const HopSeconds& seconds, Costs& costs);

}  // namespace tessera::schedule
