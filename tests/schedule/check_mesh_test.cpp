// Checks ranks of two classes together. Each class has its own steps and schedule.
#include "tessera/schedule/check/check_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "tessera/base/error.h"
#include "tessera/schedule/check/check_one_class.h"
#include "tessera/schedule/check/order_text.h"
#include "tessera/schedule/plan/plan.h"
#include "tests/schedule/oracle_cases.h"

namespace tessera::schedule {
namespace {

using mesh::Transfer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// The first replica has the ranks 0 to 2, and the second replica has the ranks 3 and 4.
const std::vector<int> kClasses{0, 0, 0, 1, 1};
const std::vector<std::vector<int>> kStorage{{0, 1, 2}, {3, 4}};
const CheckedGroups kGroups{{"gather", {Transfer::gather, kStorage}},
                            {"gather_compute", {Transfer::gather, {{0}, {1}, {2}, {3}, {4}}}},
                            {"reduce", {Transfer::reduce, kStorage}},
                            {"reduce_compute", {Transfer::reduce, {{0}, {1}, {2}, {3}, {4}}}},
                            {"replicas", {Transfer::replicas, {{0, 1, 2, 3, 4}}}}};

oracle::Case step_of(int microbatches, bool reversed = false) {
  oracle::Recorder step("a step of one class", {{"a", 2, 3}, {"b", 4, 5}});
  for (int i = 0; i < microbatches; ++i) {
    step.microbatch();
    step.backward(reversed ? 0 : 1), step.backward(reversed ? 1 : 0);
  }
  step.publish(0), step.publish(1);
  return step.take();
}

CallOrder order_of(const oracle::Case& made) {
  return call_order(made.trace, made.sizes, plan(made.trace, made.sizes, {}));
}

TEST(CheckClasses, MayHaveDifferentNumbersOfMicrobatches) {
  EXPECT_THAT(check_together(rank_orders(kGroups, {order_of(step_of(2)), order_of(step_of(3))}, kClasses)), IsEmpty());
}

TEST(CheckClasses, RefusesAScheduleOfTheOtherClassWithTheFirstDifference) {
  std::vector<int> classes = kClasses;
  classes[4] = 0;
  const auto faults = check_together(rank_orders(kGroups, {order_of(step_of(2)), order_of(step_of(3))}, classes));
  ASSERT_FALSE(faults.empty());
  EXPECT_THAT(faults.front(),
              HasSubstr("'reduce of rank 3', call 4: rank 3 makes reduce ['b'] of 5 bytes, rank 4 makes no call"));
}

TEST(CheckClasses, RefusesReorderedSumsOverReplicas) {
  EXPECT_THAT(check_together(rank_orders(kGroups, {order_of(step_of(2)), order_of(step_of(3, true))}, kClasses)),
              ElementsAre(HasSubstr("'replicas of rank 0', call 0: rank 0 makes sum ['b']")));
}

// Replicas exchange the new weights of ZeRO-1. The schedules of the two classes differ in the order of publish events.
TEST(CheckClasses, RefusesReorderedPublishEvents) {
  oracle::Case made = step_of(2);
  for (ParameterSize& size : made.sizes) size.publish = {{mesh::Transfer::publish, size.gathered}};
  const CallOrder order = order_of(made);
  EXPECT_THAT(check_together(rank_orders(kGroups, {order, order}, kClasses)), IsEmpty());
  std::swap(made.trace[made.trace.size() - 1], made.trace[made.trace.size() - 2]);
  const CallOrder other = order_of(made);
  EXPECT_THAT(check_together(rank_orders(kGroups, {order, other}, kClasses)),
              ElementsAre(HasSubstr("'replicas of rank 0', call 0: rank 0 makes publish ['a'] of 2 bytes, rank 3 makes "
                                    "publish ['b'] of 4 bytes")));
  EXPECT_THAT(check_together(rank_orders(kGroups, {other, order}, kClasses)), ElementsAre(HasSubstr("publish ['b']")));
}

// Units join members up to a number of bytes. Members have different bytes in each class, so units differ. Each member
// has a separate sum over replicas.
TEST(CheckClasses, MayHaveDifferentReduceUnits) {
  oracle::Recorder step("two small weights and a large one", {{"a", 2, 3}, {"b", 4, 5}, {"c", 2, 1000}});
  step.microbatch();
  step.backward(2), step.backward(1), step.backward(0);
  for (int id = 0; id < 3; ++id) step.publish(id);
  const oracle::Case made = step.take();
  const Schedule joined = plan(made.trace, made.sizes, {.coalesce_bytes = 1 << 20});
  ASSERT_EQ(joined.reduce_units.size(), 2u);
  EXPECT_THAT(
      check_together(rank_orders(kGroups, {order_of(made), call_order(made.trace, made.sizes, joined)}, kClasses)),
      IsEmpty());
}

TEST(CheckClasses, ReportsARoleWithoutGroups) {
  CheckedGroups groups = kGroups;
  groups.erase("reduce");
  try {
    rank_orders(groups, {order_of(step_of(1))}, {0, 0, 0, 0, 0});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("'reduce'"));
  }
}

// Two roles with the same ranks and lane share a communicator, so their calls need the same order on all ranks.
TEST(CheckClasses, RolesThatShareACommunicatorHaveOneOrder) {
  const CheckedGroups groups{{"x", {Transfer::gather, {{0, 1}}}}, {"y", {Transfer::gather, {{0, 1}}}}};
  const CallOrder one{.roles = {"x", "y"}, .calls = {{0, "a", 1}, {1, "b", 1}}};
  const CallOrder other{.roles = {"x", "y"}, .calls = {{1, "b", 1}, {0, "a", 1}}};
  EXPECT_THAT(check_together(rank_orders(groups, {one, one}, {0, 1})), IsEmpty());
  EXPECT_THAT(check_together(rank_orders(groups, {one, other}, {0, 1})),
              ElementsAre(HasSubstr("call 0: rank 0 makes a of 1 bytes, rank 1 makes b of 1 bytes")));
}

// Returns random groups that contain each of `ranks` ranks once.
std::vector<std::vector<int>> random_groups(int ranks, std::mt19937& random) {
  std::vector<int> order(static_cast<std::size_t>(ranks));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, random);
  std::vector<std::vector<int>> groups;
  for (const int rank : order) {
    if (groups.empty() || random() % 3 == 0) groups.emplace_back();
    groups.back().push_back(rank);
  }
  return groups;
}

// check_one_class() relies on this: ranks that make the same calls cannot deadlock, for any groups of the roles.
TEST(CheckOneClass, RanksWithOneScheduleHaveNoFaultTogether) {
  const CallOrder order = order_of(step_of(2));
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const int ranks = 1 + static_cast<int>(random() % 9);
    CheckedGroups groups;
    for (const std::string& role : order.roles) {
      const bool is_shared = !groups.empty() && random() % 4 == 0;
      groups.emplace(role,
                     is_shared ? groups.begin()->second : CheckedGroup{Transfer::gather, random_groups(ranks, random)});
    }
    const std::vector<int> one_class(static_cast<std::size_t>(ranks), 0);
    EXPECT_THAT(check_together(rank_orders(groups, {order}, one_class)), IsEmpty()) << trial;
  }
}

TEST(CheckOneClass, RefusesAWrongScheduleAndARoleWithoutGroups) {
  const oracle::Case made = step_of(2);
  Schedule schedule = plan(made.trace, made.sizes, {});
  std::set<std::string> roles;
  for (const auto& [role, group] : kGroups) roles.insert(role);
  EXPECT_THAT(check_one_class(roles, made.trace, made.sizes, schedule), IsEmpty());
  roles.erase("reduce");
  EXPECT_THAT(check_one_class(roles, made.trace, made.sizes, schedule), ElementsAre(HasSubstr("the role 'reduce'")));
  schedule.reductions.pop_back();
  EXPECT_THAT(check_one_class(roles, made.trace, made.sizes, schedule), Not(IsEmpty()));
}

TEST(OrderText, RoundTrips) {
  const CallOrder order = order_of(step_of(2));
  EXPECT_EQ(call_order_of(to_text(order)), order);
  EXPECT_EQ(call_order_of(to_text({})), CallOrder{});
}

TEST(OrderText, RefusesInvalidText) {
  for (const char* text : {"", "{", "[]", "{}", R"({"roles": ["a"], "calls": [[1, "x", 1]]})",
                           R"({"roles": ["a"], "calls": [[0, 1, 1]]})", R"({"roles": ["a"], "calls": [[0, "x"]]})"})
    EXPECT_THROW(call_order_of(text), Error) << text;
}

}  // namespace
}  // namespace tessera::schedule
