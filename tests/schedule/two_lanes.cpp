// Plans steps of two domains. Counts the schedules that the checker proves. Counts and prints the schedules in which a
// gather may overwrite bytes that a weight of the other domain still needs.
#include <fmt/format.h>

#include "tessera/schedule/check/check.h"
#include "tests/schedule/domain_orders.h"

int main() {
  using namespace tessera::schedule;
  std::mt19937 random(1);
  int made = 0, proved = 0, unordered = 0;
  for (const bool unpacked : {false, true})
    for (const int count : {2, 3, 4, 6}) {
      const domain_orders::Step step = domain_orders::layers({.layers = count, .unpacked = unpacked}, random);
      for (const Schedule& schedule : domain_orders::plans(step, 11)) {
        const bool is_proved = check(step.trace, step.sizes, schedule).empty();
        const auto pairs = domain_orders::unordered_pairs(schedule);
        ++made;
        proved += is_proved ? 1 : 0;
        if (pairs.empty()) continue;
        ++unordered;
        fmt::print("{} layers{}, arena {}: check() {}, {} unordered pairs; {}\n", count, unpacked ? ", unpacked" : "",
                   schedule.gather_arena, is_proved ? "proves it" : "refuses it", pairs.size(),
                   domain_orders::to_string(pairs.front(), schedule, step.sizes));
      }
    }
  fmt::print("{} schedules, {} proved by check(), {} with unordered pairs\n", made, proved, unordered);
}
