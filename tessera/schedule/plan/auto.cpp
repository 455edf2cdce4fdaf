#include "tessera/schedule/plan/auto.h"

#include <algorithm>

namespace tessera::schedule {
namespace {

constexpr double kTolerance = 1.0025;  // longest accepted step, relative to the shortest predicted step

std::int64_t gather_bytes(const Schedule& schedule) {
  return schedule.gather_arena;
}
std::int64_t reduce_bytes(const Schedule& schedule) {
  return schedule.reduce_arena + schedule.scratch;
}

std::int64_t arenas(const Schedule& schedule) {
  return gather_bytes(schedule) + reduce_bytes(schedule);
}

class Chooser {
 public:
  Chooser(const Trace& trace, const std::vector<ParameterSize>& sizes, const BudgetChoice& choice,
          const std::function<Costs(const Schedule&)>& costs_of)
      : trace_(trace), sizes_(sizes), choice_(choice), costs_of_(costs_of) {}

  Schedule choose() const {
    Schedule free = narrowed(with(kUnlimited));
    const bool chooses = !choice_.gather || !choice_.reduce;
    if (!chooses || arenas(free) <= choice_.room) return free;
    return narrowed(within_room(free));
  }

 private:
  // Returns options where the budgets that are not given are `absent`.
  ScheduleOptions with(std::int64_t absent) const {
    return {.gather_budget = choice_.gather.value_or(absent),
            .reduce_budget = choice_.reduce.value_or(absent),
            .coalesce_bytes = choice_.coalesce_bytes};
  }
  Schedule planned(const ScheduleOptions& options) const { return plan(trace_, sizes_, options); }
  double seconds(const Schedule& schedule) const {
    return simulate(trace_, schedule, costs_of_(schedule)).step_seconds;
  }

  // Returns the largest budgets that fit into the room. The budget of gradients is a quarter of the room, but not more
  // than they would use. The budget of weights is the rest of the room.
  ScheduleOptions within_room(const Schedule& free) const {
    const Schedule smallest = planned(with(kMinimum));
    std::int64_t reductions = reduce_bytes(smallest);
    ScheduleOptions options = with(kMinimum);
    if (!choice_.reduce) {
      const std::int64_t part = choice_.gather ? choice_.room - gather_bytes(smallest) : choice_.room / 4;
      options.reduce_budget = reductions = std::max(reductions, std::min(reduce_bytes(free), part));
    }
    if (!choice_.gather) options.gather_budget = std::max(gather_bytes(smallest), choice_.room - reductions);
    return options;
  }

  // Reduces the budgets that are not given while the predicted step stays within the tolerance.
  Schedule narrowed(ScheduleOptions options) const {
    Schedule best = planned(options);
    const double longest = seconds(best) * kTolerance;
    // Reduces one budget and keeps the other.
    auto narrow = [&](std::int64_t& budget, auto used) {
      const std::int64_t most = used(best), widest = budget;
      budget = kMinimum;
      Schedule tried = planned(options);
      const std::int64_t smallest = used(tried);
      for (std::int64_t bytes = smallest; seconds(tried) > longest; tried = planned(options)) {
        bytes *= 2;
        if (bytes >= most || bytes <= 0) {
          budget = widest;
          return;
        }
        budget = bytes;
      }
      budget = std::max(smallest, used(tried));  // a schedule may use less than the minimum budget
      best = std::move(tried);
    };
    if (!choice_.reduce) narrow(options.reduce_budget, reduce_bytes);
    if (!choice_.gather) narrow(options.gather_budget, gather_bytes);
    return best;
  }

  const Trace& trace_;
  const std::vector<ParameterSize>& sizes_;
  const BudgetChoice& choice_;
  const std::function<Costs(const Schedule&)>& costs_of_;
};

}  // namespace

Schedule plan_within(const Trace& trace, const std::vector<ParameterSize>& sizes, const BudgetChoice& choice,
                     const std::function<Costs(const Schedule&)>& costs_of) {
  return Chooser(trace, sizes, choice, costs_of).choose();
}

}  // namespace tessera::schedule
