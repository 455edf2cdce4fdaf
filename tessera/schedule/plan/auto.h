// Budgets chosen from predicted times.
#pragma once
#include <functional>
#include <optional>

#include "tessera/schedule/plan/plan.h"
#include "tessera/schedule/simulate.h"

namespace tessera::schedule {

struct BudgetChoice {
  std::optional<std::int64_t> gather, reduce;  // budgets as in ScheduleOptions; nullopt: plan_within chooses the budget
  std::int64_t coalesce_bytes = 0;
  // Bytes for all arenas together. Given budgets and the smallest arenas may exceed this number.
  std::int64_t room = kUnlimited;
};

// Calls plan() with budgets chosen for those that `choice` leaves open. A chosen budget is the smallest of min, 2 x
// min, 4 x min ... for which the predicted step is at most 0.25 % longer than with budgets that use the whole `room`.
// `costs_of` returns the durations of a schedule's units and events. Pure. Throws the errors of plan().
Schedule plan_within(const Trace& trace, const std::vector<ParameterSize>& sizes, const BudgetChoice& choice,
                     const std::function<Costs(const Schedule&)>& costs_of);

}  // namespace tessera::schedule
