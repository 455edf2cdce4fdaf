// Gathers of several domains share an arena. The planner orders each gather after every earlier use of its bytes. The
// checker refuses schedules that do not have this order.
#include "tests/schedule/domain_orders.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

#include "tessera/schedule/check/check.h"

namespace tessera::schedule::domain_orders {
namespace {

constexpr unsigned kSeed = 1;

std::vector<Step> steps() {
  std::mt19937 random(kSeed);
  std::vector<Step> all;
  for (const bool unpacked : {false, true})
    for (const int domains : {1, 2, 3, 5})
      for (const int count : {2, 3, 4})
        for (const bool odd : {false, true})
          all.push_back(layers({.layers = count, .domains = domains, .unpacked = unpacked, .odd = odd}, random));
  return all;
}

TEST(DomainOrders, PlansHaveNoUnorderedPair) {
  int made = 0;
  for (const Step& step : steps())
    for (const Schedule& schedule : plans(step, 7)) {
      ++made;
      EXPECT_EQ(check(step.trace, step.sizes, schedule), std::vector<std::string>());
      for (const UnorderedPair& pair : unordered_pairs(schedule))
        ADD_FAILURE() << to_string(pair, schedule, step.sizes);
    }
  EXPECT_GT(made, 300);
}

TEST(DomainOrders, TheCheckerRefusesWaitsOfOneLane) {
  int made = 0, unordered = 0, refused = 0;
  for (const Step& step : steps())
    for (const Schedule& planned : plans(step, 7)) {
      const Schedule schedule = with_waits_of_one_lane(step, planned);
      const bool is_proved = check(step.trace, step.sizes, schedule).empty();
      const auto pairs = unordered_pairs(schedule);
      ++made;
      refused += is_proved ? 0 : 1;
      unordered += pairs.empty() ? 0 : 1;
      if (!pairs.empty()) EXPECT_FALSE(is_proved) << to_string(pairs.front(), schedule, step.sizes);
    }
  std::cout << made << " schedules with waits of one lane, " << unordered << " with unordered pairs, " << refused
            << " refused (seed " << kSeed << ")\n";
  EXPECT_GT(unordered, 30);
}

// The checker refuses a schedule if a wait of the planner is removed and the use for which the gather waited is then
// not ordered before the gather.
TEST(DomainOrders, AWaitBeforeADisplacedUseIsRefused) {
  int tried = 0;
  for (const Step& step : steps())
    for (const Schedule& planned : plans(step, 3)) {
      for (std::size_t i = 0; i < planned.residencies.size(); ++i) {
        Schedule schedule = planned;
        Residency& it = schedule.residencies[i];
        if (it.free < 0) continue;
        it.free = -1;
        if (unordered_pairs(schedule).empty()) continue;  // an earlier gather of the domain already waits for the use
        ++tried;
        EXPECT_FALSE(check(step.trace, step.sizes, schedule).empty());
        break;
      }
    }
  EXPECT_GT(tried, 50);
}

// With one domain, remembering evicted weights changes only the positions `free` of a plan.
TEST(DomainOrders, OneDomainIsPlannedAsBefore) {
  for (const Step& step : steps()) {
    if (std::ranges::any_of(step.sizes, [](const ParameterSize& size) { return size.domain != 0; })) continue;
    for (const Schedule& planned : plans(step, 7))
      EXPECT_TRUE(check(step.trace, step.sizes, with_waits_of_one_lane(step, planned)).empty());
  }
}

}  // namespace
}  // namespace tessera::schedule::domain_orders
