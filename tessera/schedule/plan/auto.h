// Budgets chosen from predicted times.
#pragma once
#include <functional>
#include <optional>

#include "tessera/schedule/plan/plan.h"
#include "tessera/schedule/simulate.h"

namespace tessera::schedule {

struct BudgetChoice {
  std::optional<std::int64_t> gather, reduce;  // given budgets, as those of ScheduleOptions; none: chosen
  std::int64_t coalesce_bytes = 0;
  std::int64_t room =
      kUnlimited;  // bytes that all arenas may take together, unless given budgets or the smallest are more
};

// plan() with each absent budget the smallest of min, 2 x min, 4 x min ... with which the step is predicted to take at
// most 0.25 % longer than with all the room. costs_of: seconds of a schedule's units. Pure; errors as plan().
Schedule plan_within(const Trace& trace, const std::vector<ParameterSize>& sizes, const BudgetChoice& choice,
                     const std::function<Costs(const Schedule&)>& costs_of);

}  // namespace tessera::schedule
