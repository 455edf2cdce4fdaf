// Computes the times of the transfers of a schedule's units, for simulate.h.
#pragma once
#include <functional>

#include "tessera/schedule/simulate.h"

namespace tessera::schedule {

// A function that returns the seconds of one message in a hop of a domain. `bytes` is the number of bytes that one rank
// receives.
using HopSeconds = std::function<double(int domain, mesh::Transfer transfer, std::int64_t bytes)>;

// Sets Costs::seconds. The members of a unit travel in one message per hop. Publish events take one message per
// parameter.
void set_way_costs(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule,
                   const HopSeconds& seconds, Costs& costs);

}  // namespace tessera::schedule
