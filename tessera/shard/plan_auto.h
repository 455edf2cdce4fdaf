// Budgets chosen from predicted times.
#pragma once
#include <functional>
#include <optional>

#include "tessera/shard/plan.h"
#include "tessera/shard/simulate.h"

namespace tessera::shard {

// plan() with each absent budget the smallest of min, 2 x min, 4 x min ... with which the step is predicted to take at
// most 0.25 % longer than with unlimited ones. costs_of: seconds of a schedule's units. Pure; errors as plan().
Schedule plan_within(const Trace& trace, const std::vector<ParameterSize>& sizes,
                     std::optional<std::int64_t> gather_budget, std::optional<std::int64_t> reduce_budget,
                     std::int64_t coalesce_bytes, const std::function<Costs(const Schedule&)>& costs_of);

}  // namespace tessera::shard
