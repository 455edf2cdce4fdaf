// Ranks of two classes, whose steps have other numbers of microbatches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"
#include "tessera/runtime/runtime.h"

namespace tessera::runtime {
namespace {

using schedule::Pass;

constexpr int kWeights = 3, kBlocks = 6;

// Every block's gradient of weight i is i + 1. reversed: weights are used in another order.
void step(Runtime& runtime, bool reversed) {
  const int microbatches = kBlocks / runtime.parallel().cuts().parts;
  runtime.begin_step(schedule::StepKind::train, microbatches);
  for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
    runtime.begin_microbatch();
    for (int k = 0; k < kWeights; ++k) {
      const int id = reversed ? kWeights - 1 - k : k;
      runtime.consume(id, Pass::forward);
      runtime.release(id, Pass::forward);
    }
    for (int id = kWeights - 1; id >= 0; --id) {
      runtime.consume(id, Pass::backward);
      runtime.release(id, Pass::backward);
      std::ranges::fill_n(static_cast<float*>(runtime.grad_buffer(id).data), 24, static_cast<float>(id + 1));
      runtime.produce(id);
    }
    runtime.end_microbatch();
  }
  runtime.end_step();
}

// In step 3 ranks of class `reversed` leave their schedule.
void run_classes(int reversed) {
  const mesh::Grid grid{{"a", 1}, {"b", 3}, {"c", 2}};
  const shard::Domain domain{.compute = {"a"}, .storage = {"b"}, .copies = {}, .replicas = {"c"}};
  comm::LocalOptions options;
  options.timeout = std::chrono::seconds(20);
  comm::run_local(5, options, [&](comm::World& world) {
    shard::Parallel parallel = shard::make_parallel(world, mesh::Mesh({grid}, mesh::live_places(grid, {4})), {domain});
    ASSERT_TRUE(parallel.has_classes());
    Runtime runtime(parallel, {}, {});
    for (int id = 0; id < kWeights; ++id)
      runtime.add({.name = "w" + std::to_string(id), .dims = {6, 4}, .compute = layout::replicated({6, 4}, 1)});
    for (int i = 0; i < 5; ++i) {
      step(runtime, i == 3 && parallel.class_of[static_cast<std::size_t>(world.rank())] == reversed);
      for (int id = 0; id < kWeights; ++id)
        for (const float sum : runtime.parameter(id).main_grad.as<float>()) ASSERT_EQ(sum, 2 * kBlocks * (id + 1));
      for (int id = 0; id < kWeights; ++id) runtime.publish(id);
      runtime.finish(runtime.pending());
    }
    EXPECT_EQ(runtime.schedule_statistics().planned, 1);
  });
}

// Ranks may be numbered in another order than their places lie in.
TEST(Classes, EveryRankKnowsWhatEachClassCalls) {
  const mesh::Grid grid{{"a", 1}, {"b", 3}, {"c", 2}};
  const shard::Domain domain{.compute = {"a"}, .storage = {"b"}, .copies = {}, .replicas = {"c"}};
  for (const std::vector<int>& places : {std::vector<int>{0, 1, 2, 3, 5}, {3, 5, 0, 1, 2}, {1, 5, 0, 3, 2}})
    comm::run_local(5, {}, [&](comm::World& world) {
      shard::Parallel parallel = shard::make_parallel(world, mesh::Mesh({grid}, places), {domain});
      Agreement agreement(parallel);
      const auto order_of = [&](int rank) {
        return schedule::CallOrder{
            .roles = {"gather"},
            .calls = {{0, "of a replica of " + std::to_string(parallel.mesh.group_of(rank, {"b"}).size()), 1}}};
      };
      const std::vector<schedule::CallOrder> orders = agreement.orders_of_classes(order_of(world.rank()), {});
      ASSERT_EQ(orders.size(), 2u);
      for (int rank = 0; rank < 5; ++rank)
        EXPECT_EQ(orders[static_cast<std::size_t>(parallel.class_of[static_cast<std::size_t>(rank)])], order_of(rank));
    });
}

TEST(Classes, AddTheirGradientsByTheirOwnSchedules) {
  run_classes(-1);
}

// The others' sums over replicas would meet its own in another order.
TEST(Classes, OneThatLeavesItsScheduleEndsTheRun) {
  for (const int reversed : {0, 1}) {
    try {
      run_classes(reversed);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("leaves its schedule"));
    }
  }
}

}  // namespace
}  // namespace tessera::runtime
