// The costs of a timed step on a `local` link, and a lower bound of the step's time. Pure functions.
#pragma once
#include <vector>

#include "tessera/comm/local/link.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/schedule/simulate.h"

namespace tessera::bench {

// Returns the costs. segments[i] is the compute time before event i of the trace. In a step on demand, the ranks
// compare their events at the end of a microbatch and before each gather. The time of a comparison is added to the
// microbatch's last event or to the gather. The costs are exact if the ranks have equal parts, the parameters of a
// domain move over one axis, gradients are added in rank order, and on-demand units have one weight.
schedule::Costs exact_costs(const comm::Link& link, const nn::MeshDegrees& degrees, const schedule::Trace& trace,
                            const std::vector<schedule::ParameterSize>& sizes, const schedule::Schedule& schedule,
                            std::vector<double> segments, bool on_demand);

// Returns the seconds of the longest chain of dependencies from one step's first publish event to the next step's first
// publish event. In this chain, the program runs in order. Each weight is gathered once after its publish event, and
// weights are gathered in the order of use. Gradients are reduced one after another, each as soon as it is produced. No
// arena limits the chain. Therefore no schedule is faster if the costs apply to every rank.
double longest_path(const schedule::Trace& trace, const schedule::Schedule& schedule, const schedule::Costs& costs);

}  // namespace tessera::bench
