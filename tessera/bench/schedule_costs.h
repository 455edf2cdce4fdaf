// The costs of a timed step on a `local` link, and the shortest time of such a step. Pure.
#pragma once
#include <vector>

#include "tessera/comm/local/link.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/schedule/simulate.h"

namespace tessera::bench {

// Returns the costs. `segments` holds, by event of the trace, the compute time before it. The comparison between ranks
// at the end of an on-demand microbatch is added to the microbatch's last event. The comparison before each on-demand
// gather is added to the gather. Exact if the ranks have equal parts, the parameters of a domain move over one axis,
// gradients are added in rank order, and on-demand units have one weight.
schedule::Costs exact_costs(const comm::Link& link, const nn::MeshDegrees& degrees, const schedule::Trace& trace,
                            const std::vector<schedule::ParameterSize>& sizes, const schedule::Schedule& schedule,
                            std::vector<double> segments, bool on_demand);

// Returns the seconds of the longest chain of dependencies from one step's first publish to the next step's. The
// program runs in order. Each weight is gathered once, after its publish, in the order of use. Each gradient is reduced
// when it is produced, one after another. No arena limits the chain. Therefore no schedule is faster if the costs apply
// to every rank.
double longest_path(const schedule::Trace& trace, const schedule::Schedule& schedule, const schedule::Costs& costs);

}  // namespace tessera::bench
