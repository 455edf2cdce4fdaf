// Chooses budgets from predicted times.
#pragma once
#include <functional>
#include <optional>

#include "tessera/schedule/plan/plan.h"
#include "tessera/schedule/simulate.h"

namespace tessera::schedule {

struct BudgetChoice {
  // Budgets with the meaning of ScheduleOptions; nullopt: plan_within chooses the budget.
  std::optional<std::int64_t> gather, reduce;
  std::int64_t coalesce_bytes = 0;
  // Bytes for all arenas together. Only given budgets and the smallest possible arenas may exceed this number.
  std::int64_t room = kUnlimited;
};

// Chooses the budgets that `choice` does not give, and calls plan(). A chosen budget is the smallest of min, 2 x min, 4
// x min, ... for which the predicted step is at most 0.25 % longer than with budgets that use the whole `room`.
// `costs_of` returns the durations of a schedule's units and events. Pure. Throws the errors of plan().
Schedule plan_within(const Trace& trace, const std::vector<ParameterSize>& sizes, const BudgetChoice& choice,
                     const std::function<Costs(const Schedule&)>& costs_of);

}  // namespace tessera::schedule
