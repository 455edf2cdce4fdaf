// Checks of all ranks together: deadlocks are reported with their ranks, and many equal ranks cost as much as one rank.
#include "tessera/schedule/check/together.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <iostream>
#include <random>

#include "tessera/schedule/plan/plan.h"
#include "tests/schedule/oracle_cases.h"

namespace tessera::schedule {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns `ranks` ranks that call `order`. Each role has one communicator with all ranks.
RankOrders everyone(const CallOrder& order, int ranks) {
  RankOrders all{.orders = {order}};
  CheckedRank rank;
  for (const std::string& role : order.roles) {
    rank.communicators.push_back(static_cast<int>(all.communicators.size()));
    all.communicators.push_back({.name = role});
    for (int r = 0; r < ranks; ++r) all.communicators.back().ranks.push_back(r);
  }
  all.ranks.assign(static_cast<std::size_t>(ranks), rank);
  return all;
}

// Gives rank `rank` its own order.
void give(RankOrders& all, int rank, CallOrder order) {
  all.ranks[static_cast<std::size_t>(rank)].order = static_cast<int>(all.orders.size());
  all.orders.push_back(std::move(order));
}

// Returns whether all ranks finish if each rank waits at a call until all members have reached it.
bool completes(const RankOrders& all) {
  std::vector<std::size_t> done(all.ranks.size(), 0);
  std::vector<std::vector<int>> made(all.ranks.size(), std::vector<int>(all.communicators.size(), 0));
  auto next = [&](int r) -> const CollectiveCall* {
    const CheckedRank& rank = all.ranks[static_cast<std::size_t>(r)];
    const auto& calls = all.orders[static_cast<std::size_t>(rank.order)].calls;
    return done[static_cast<std::size_t>(r)] < calls.size() ? &calls[done[static_cast<std::size_t>(r)]] : nullptr;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t c = 0; c < all.communicators.size(); ++c) {
      const auto& members = all.communicators[c].ranks;
      const CollectiveCall* call = next(members.front());
      const bool together = std::ranges::all_of(members, [&](int r) {
        const CollectiveCall* own = next(r);
        return own &&
               all.ranks[static_cast<std::size_t>(r)].communicators[static_cast<std::size_t>(own->role)] ==
                   static_cast<int>(c) &&
               own->what == call->what && own->bytes == call->bytes;
      });
      if (!together) continue;
      for (const int r : members) ++done[static_cast<std::size_t>(r)];
      moved = true;
    }
  }
  for (int r = 0; r < static_cast<int>(all.ranks.size()); ++r)
    if (next(r)) return false;
  return true;
}

const CallOrder kTwo{.roles = {"gtp", "tp"}, .calls = {{0, "gather ['a']", 8}, {1, "all_gather", 4}}};

TEST(CheckTogether, ReversedCommunicatorsOnOneRank) {
  RankOrders all = everyone(kTwo, 3);
  EXPECT_THAT(check_together(all), IsEmpty());
  give(all, 1, {.roles = kTwo.roles, .calls = {kTwo.calls[1], kTwo.calls[0]}});
  EXPECT_THAT(check_together(all),
              ElementsAre("deadlock: rank 0 calls gather ['a'] on 'gtp' before all_gather on 'tp'; rank 1 calls "
                          "all_gather on 'tp' before gather ['a'] on 'gtp'"));
}

TEST(CheckTogether, ReversedGathersOnOneRank) {
  const oracle::Case made = oracle::cases()[0];
  Schedule schedule = plan(made.trace, made.sizes, {});
  RankOrders all = everyone(call_order(made.trace, made.sizes, schedule), 2);
  EXPECT_THAT(check_together(all), IsEmpty());
  std::swap(schedule.residencies[0], schedule.residencies[1]);
  give(all, 1, call_order(made.trace, made.sizes, schedule));
  EXPECT_THAT(check_together(all),
              ElementsAre("'gather', call 0: rank 0 makes gather ['a'] of 2 bytes, rank 1 makes gather "
                          "['b'] of 3 bytes"));
}

// All ranks must reduce the amaxes of buckets in the same order, although the messages look equal.
TEST(CheckTogether, ReorderedBucketAmaxesOnOneRank) {
  oracle::Recorder step("two buckets of one weight", {{"a", 2, 3}, {"b", 4, 5}});
  step.microbatch();
  step.backward(1), step.backward(0);
  step.amaxes(1), step.publish(0);
  step.amaxes(1), step.publish(1);
  const oracle::Case made = step.take();
  const auto order_of = [&](const Trace& trace) { return call_order(trace, made.sizes, plan(trace, made.sizes, {})); };
  RankOrders all = everyone(order_of(made.trace), 3);
  EXPECT_THAT(check_together(all), IsEmpty());
  const auto& calls = all.orders[0].calls;
  EXPECT_EQ(calls[0].what, "all_reduce max (0) before the publish event of ['a']");
  EXPECT_EQ(all.orders[0].roles[0], kCastGroup);

  Trace reversed = made.trace;  // exchanges only the two messages
  std::swap(reversed[6], reversed[8]);
  give(all, 1, order_of(reversed));
  EXPECT_THAT(
      check_together(all),
      ElementsAre(HasSubstr("'casts', call 0: rank 0 makes all_reduce max (0) before the publish event of ['a'] "
                            "of 4 bytes, rank 1 makes all_reduce max (1) before the publish event of ['a']")));
  all = everyone(order_of(made.trace), 3);
  reversed = made.trace;  // exchanges the two buckets with their messages
  std::swap(reversed[7], reversed[9]);
  give(all, 2, order_of(reversed));
  EXPECT_THAT(check_together(all),
              Contains(HasSubstr("rank 2 makes all_reduce max (0) before the publish event of ['b']")));
  all = everyone(order_of(made.trace), 3);
  Trace without = made.trace;
  without.erase(without.begin() + 8);
  give(all, 1, order_of(without));
  EXPECT_THAT(check_together(all), Contains(HasSubstr("'casts'")));
}

// One rank issues a gather between the two messages. The two communicators would wait for each other.
TEST(CheckTogether, ReorderedAmaxesAndPrefetchOnOneRank) {
  const oracle::Case made = oracle::cases()[7];
  ASSERT_EQ(made.name, "amaxes before the publish events of a bucket");
  Schedule schedule = plan(made.trace, made.sizes, {});
  RankOrders all = everyone(call_order(made.trace, made.sizes, schedule), 2);
  EXPECT_THAT(check_together(all), IsEmpty());
  // The gather is issued after both messages.
  for (Residency& it : schedule.residencies) it.issue = std::max(it.issue, -1);
  give(all, 1, call_order(made.trace, made.sizes, schedule));
  EXPECT_THAT(check_together(all), ElementsAre(HasSubstr("deadlock: ")));
}

TEST(CheckTogether, ACallThatOtherRanksDoNotMake) {
  RankOrders all = everyone(kTwo, 2);
  give(all, 1, {.roles = kTwo.roles, .calls = {kTwo.calls[0]}});
  EXPECT_THAT(check_together(all),
              ElementsAre("'tp', call 0: rank 0 makes all_gather of 4 bytes, rank 1 makes no call"));
}

TEST(CheckTogether, CallsWithDifferentBytes) {
  RankOrders all = everyone(kTwo, 2);
  CallOrder other = kTwo;
  other.calls[0].bytes = 9;
  give(all, 1, other);
  EXPECT_THAT(check_together(all), ElementsAre(HasSubstr("of 8 bytes, rank 1 makes gather ['a'] of 9 bytes")));
}

// Three ranks with a communicator for each pair. Each pair agrees on its order, but all ranks wait.
TEST(CheckTogether, ACycleOverThreeRanks) {
  RankOrders all{.communicators = {{"ab", {0, 1}}, {"bc", {1, 2}}, {"ca", {2, 0}}}};
  all.orders = {{.roles = {"left", "right"}, .calls = {{1, "send", 1}, {0, "send", 1}}}};
  all.ranks = {{0, {2, 0}}, {0, {0, 1}}, {0, {1, 2}}};
  EXPECT_FALSE(completes(all));
  ASSERT_EQ(check_together(all).size(), 1u);
  for (const char* part : {"rank 0 calls send on 'ab' before send on 'ca'",
                           "rank 1 calls send on 'bc' before send on "
                           "'ab'",
                           "rank 2 calls send on 'ca' before send on 'bc'"})
    EXPECT_THAT(check_together(all), ElementsAre(HasSubstr(part)));
  // If one rank reverses its order, there is no deadlock, although some ranks and communicators still look equal.
  give(all, 2, {.roles = {"left", "right"}, .calls = {{0, "send", 1}, {1, "send", 1}}});
  EXPECT_TRUE(completes(all));
  EXPECT_THAT(check_together(all), IsEmpty());
}

// A chain of equal ranks with equal communicators. If the check merged these ranks into one rank, this rank would wait
// for itself.
TEST(CheckTogether, AChainOfEqualRanks) {
  RankOrders all{.communicators = {{"ab", {0, 1}}, {"bc", {1, 2}}, {"cd", {2, 3}}}};
  const CollectiveCall left{0, "send", 1}, right{1, "send", 1};
  all.orders = {{.roles = {"left", "right"}, .calls = {left, right}},
                {.roles = {"right"}, .calls = {{0, "send", 1}}},
                {.roles = {"left"}, .calls = {{0, "send", 1}}}};
  all.ranks = {{1, {0}}, {0, {0, 1}}, {0, {1, 2}}, {2, {2}}};
  EXPECT_TRUE(completes(all));
  EXPECT_THAT(check_together(all), IsEmpty());
}

TEST(CheckTogether, InconsistentRanksAndCommunicators) {
  RankOrders all = everyone(kTwo, 2);
  all.ranks[1].communicators = {0, 0};
  EXPECT_THAT(check_together(all), ElementsAre("rank 1: it holds the communicators [0, 0], but is a member of [0, 1]"));
  all = everyone(kTwo, 2);
  all.communicators[1].ranks.push_back(1);
  EXPECT_THAT(check_together(all), ElementsAre("'tp': rank 1 is a member twice"));
}

// Random small groups and orders: the checker refuses them if and only if the ranks do not finish.
TEST(CheckTogether, AgreesWithRunningTheRanks) {
  std::mt19937_64 random(3);
  int refused = 0, accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    RankOrders all;
    const int ranks = 2 + static_cast<int>(random() % 3), communicators = 1 + static_cast<int>(random() % 3);
    all.ranks.resize(static_cast<std::size_t>(ranks));
    for (int c = 0; c < communicators; ++c) {
      all.communicators.push_back({.name = std::string(1, static_cast<char>('x' + c))});
      for (int r = 0; r < ranks; ++r)
        if (random() % 3) {
          all.communicators.back().ranks.push_back(r);
          all.ranks[static_cast<std::size_t>(r)].communicators.push_back(c);
        }
      if (all.communicators.back().ranks.empty()) {
        all.communicators.back().ranks.push_back(0);
        all.ranks[0].communicators.push_back(c);
      }
    }
    // All ranks take the calls in one random order. In a third of the ranks, two adjacent calls are exchanged.
    std::vector<std::pair<int, std::string>> instances;
    for (int i = 0; i < 5; ++i)
      instances.emplace_back(static_cast<int>(random() % static_cast<unsigned>(communicators)),
                             random() % 4 ? "op" : "other");
    for (CheckedRank& rank : all.ranks) {
      CallOrder order{.roles = std::vector<std::string>(rank.communicators.size(), "role")};
      for (const auto& [c, what] : instances)
        if (const auto at = std::ranges::find(rank.communicators, c); at != rank.communicators.end())
          order.calls.push_back({static_cast<int>(at - rank.communicators.begin()), what, 1});
      if (random() % 3 == 0 && order.calls.size() > 1) std::swap(order.calls[0], order.calls[1]);
      rank.order = static_cast<int>(all.orders.size());
      all.orders.push_back(std::move(order));
    }
    const bool right = completes(all);
    EXPECT_EQ(check_together(all).empty(), right) << "round " << round;
    ++(right ? accepted : refused);
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(accepted, 100);
}

// Gathers and reductions have separate communicators. A publish event comes before the gathers of its weight. The sum
// over replicas follows the last reduction, or the body if the last microbatch has no reduction.
TEST(CheckTogether, CallsOfASchedule) {
  oracle::Recorder step("two layers, one in the first microbatch only", {{"a", 2, 3}, {"b", 4, 5}});
  step.microbatch();
  step.backward(1);
  step.backward(0);
  step.microbatch();
  step.backward(0);
  step.publish(0), step.publish(1);
  oracle::Case made = step.take();
  made.sizes[0].replicas = {{mesh::Transfer::replicas, 7}};
  made.sizes[1].replicas = {{mesh::Transfer::replicas, 8}};
  made.sizes[1].publish = {{mesh::Transfer::publish, 4}};
  made.sizes[1].gather.push_back({mesh::Transfer::gather_compute, 9});
  made.sizes[1].reduce.insert(made.sizes[1].reduce.begin(), {mesh::Transfer::reduce_compute, 6});
  made.trace.insert(made.trace.begin() + 3,
                    {.kind = EventKind::comm, .microbatch = 0, .group = "tp", .op = "all_reduce", .bytes = 16});
  const CallOrder order = call_order(made.trace, made.sizes, plan(made.trace, made.sizes, {}));
  std::vector<std::string> calls;
  for (const CollectiveCall& call : order.calls)
    calls.push_back(fmt::format("{}: {} {}", order.roles[static_cast<std::size_t>(call.role)], call.what, call.bytes));
  EXPECT_THAT(calls,
              ElementsAre("replicas: publish ['b'] 4", "gather: gather ['b'] 4", "gather_compute: gather ['b'] 9",
                          "gather: gather ['a'] 2", "reduce_compute: reduce ['b'] 6", "reduce: reduce ['b'] 5",
                          "tp: all_reduce 16", "reduce: reduce ['a'] 3", "reduce: reduce ['a'] 3",
                          "replicas: sum ['a'] 7", "replicas: sum ['b'] 8"));
}

// The mesh is tp 2, gtp 4 and dp 8. Each rank makes 100,000 calls.
RankOrders mesh(const CallOrder& order) {
  RankOrders all{.orders = {order}};
  all.ranks.assign(64, {});
  auto add = [&](const std::string& name, int stride, int size) {
    for (int first = 0; first < 64; ++first) {
      if (first / stride % size != 0) continue;
      const auto index = static_cast<int>(all.communicators.size());
      all.communicators.push_back({.name = name + std::to_string(first)});
      for (int i = 0; i < size; ++i) {
        all.communicators.back().ranks.push_back(first + i * stride);
        const int member = first + i * stride;
        all.ranks[static_cast<std::size_t>(member)].communicators.push_back(index);
      }
    }
  };
  add("gtp", 2, 4), add("gtp_reduce", 2, 4), add("dp", 8, 8), add("tp", 1, 2);
  return all;
}

TEST(CheckTogether, SixtyFourEqualRanks) {
  CallOrder order{.roles = {"gtp", "gtp_reduce", "dp", "tp"}};
  std::mt19937_64 random(5);
  for (int call = 0; call < 100000; ++call)
    order.calls.push_back({static_cast<int>(random() % 4), "call of unit " + std::to_string(call % 97), 64});
  RankOrders all = mesh(order);
  auto timed = [&](const char* what) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::string> faults = check_together(all);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::cout << what << ": " << seconds.count() << " s\n";
    return faults;
  };
  EXPECT_THAT(timed("64 ranks, one class, 100000 calls"), IsEmpty());
  // In the middle of the step, rank 37 enqueues a reduction and a gather in another order than the other ranks.
  std::size_t at = 70000;
  while (order.calls[at].role != 0 || order.calls[at + 1].role != 1) ++at;
  std::swap(order.calls[at], order.calls[at + 1]);
  give(all, 37, order);
  EXPECT_THAT(timed("one rank reversed"), ElementsAre(AllOf(HasSubstr("rank 37 calls"), HasSubstr("on 'gtp33' before"),
                                                            HasSubstr("on 'gtp_reduce33' before"))));
}

}  // namespace
}  // namespace tessera::schedule
