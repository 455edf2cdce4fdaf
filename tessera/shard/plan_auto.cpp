#include "tessera/shard/plan_auto.h"

#include <algorithm>

namespace tessera::shard {
namespace {

constexpr double kTolerance = 1.0025;  // of the shortest predicted step

}  // namespace

Schedule plan_within(const Trace& trace, const std::vector<ParameterSize>& sizes,
                     std::optional<std::int64_t> gather_budget, std::optional<std::int64_t> reduce_budget,
                     std::int64_t coalesce_bytes, const std::function<Costs(const Schedule&)>& costs_of) {
  PlanOptions options{.gather_budget = gather_budget.value_or(kUnlimited),
                      .reduce_budget = reduce_budget.value_or(kUnlimited),
                      .coalesce_bytes = coalesce_bytes};
  auto seconds = [&](const Schedule& schedule) { return simulate(trace, schedule, costs_of(schedule)).step_seconds; };
  Schedule best = plan(trace, sizes, options);
  const double longest = seconds(best) * kTolerance;
  // Narrows one budget while the step stays short enough; the other keeps its value.
  auto narrow = [&](std::int64_t& budget, auto used) {
    const std::int64_t most = used(best);
    budget = kMinimum;
    Schedule tried = plan(trace, sizes, options);
    const std::int64_t smallest = used(tried);
    for (std::int64_t bytes = smallest; seconds(tried) > longest; tried = plan(trace, sizes, options)) {
      bytes *= 2;
      if (bytes >= most || bytes <= 0) {
        budget = kUnlimited;
        return;
      }
      budget = bytes;
    }
    budget = std::max(smallest, used(tried));  // a schedule may take less than the smallest that always runs
    best = std::move(tried);
  };
  if (!reduce_budget) narrow(options.reduce_budget, [](const Schedule& s) { return s.reduce_arena + s.scratch; });
  if (!gather_budget) narrow(options.gather_budget, [](const Schedule& s) { return s.gather_arena; });
  return best;
}

}  // namespace tessera::shard
