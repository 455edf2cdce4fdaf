// Tests ranks of two classes, whose steps have different numbers of microbatches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"
#include "tessera/runtime/runtime.h"

namespace tessera::runtime {
namespace {

using schedule::Pass;

constexpr int kWeights = 3, kBlocks = 6;

// Runs a step in which the gradient of weight i is i + 1 in every block. reversed: weights are used in another order.
// skipped: the weight whose gradient is not produced. backward_reversed: gradients are produced in another order.
void step(Runtime& runtime, bool reversed, int skipped = -1, bool backward_reversed = false) {
  const int microbatches = kBlocks / runtime.parallel().cuts().parts;
  runtime.program().begin_step(schedule::StepKind::train, microbatches);
  for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
    runtime.program().begin_microbatch(microbatch);
    for (int k = 0; k < kWeights; ++k) {
      const int id = reversed ? kWeights - 1 - k : k;
      runtime.program().consume(id, {microbatch, Pass::forward});
      runtime.program().release(id, {microbatch, Pass::forward});
    }
    for (int k = 0; k < kWeights; ++k) {
      const int id = backward_reversed ? k : kWeights - 1 - k;
      runtime.program().consume(id, {microbatch, Pass::backward});
      runtime.program().release(id, {microbatch, Pass::backward});
      if (id == skipped) continue;
      std::ranges::fill_n(static_cast<float*>(runtime.program().grad_buffer(id, microbatch).data),
                          runtime.parameter(id).local_compute.size, static_cast<float>(id + 1));
      runtime.program().produce(id, microbatch);
    }
    runtime.program().end_microbatch(microbatch);
  }
  runtime.program().end_step();
}

// Adds a weight. The first weight is as large as all others together, so the others may share a unit.
void add_weight(Runtime& runtime, int id) {
  const std::int64_t rows = id == 0 ? 36 : 6;
  runtime.parameters().add(
      {.name = "w" + std::to_string(id), .dims = {rows, 4}, .compute = layout::replicated({rows, 4}, 1)});
}

// Calls body on every rank of a replica with 3 ranks and a replica with 2 ranks. In the class `joined`, gradients share
// units.
void on_classes(const std::function<void(Runtime& runtime, int its_class)>& body, int joined = -1) {
  const mesh::Grid grid{{"a", 1}, {"b", 3}, {"c", 2}};
  const shard::Domain domain{.compute = {"a"}, .storage = {"b"}, .duplicates = {}, .replicas = {"c"}};
  comm::LocalOptions options;
  options.timeout = std::chrono::seconds(20);
  comm::run_local(5, options, [&](comm::World& world) {
    shard::ParallelGroups parallel = shard::make_parallel_groups(
        world, {.mesh = mesh::Mesh({grid}, mesh::live_places(grid, {4})), .domains = {domain}});
    ASSERT_TRUE(parallel.has_classes());
    const int its_class = parallel.class_of[static_cast<std::size_t>(world.rank())];
    Runtime runtime(parallel, {}, {.coalesce_bytes = its_class == joined ? 1 << 20 : 0});
    for (int id = 0; id < kWeights; ++id) add_weight(runtime, id);
    body(runtime, its_class);
  });
}

// In step 3, ranks of class `reversed` depart from their schedule.
void run_classes(int reversed, int joined = -1) {
  const auto body = [&](Runtime& runtime, int its_class) {
    for (int i = 0; i < 5; ++i) {
      step(runtime, i == 3 && its_class == reversed);
      for (int id = 0; id < kWeights; ++id)
        for (const float sum : runtime.parameter(id).main_grad.as<float>()) ASSERT_EQ(sum, 2 * kBlocks * (id + 1));
      for (int id = 0; id < kWeights; ++id) runtime.program().publish(id);
      runtime.finish(runtime.pending());
    }
    EXPECT_EQ(runtime.schedule_statistics().planned, 1);
    const int microbatches = kBlocks / runtime.parallel().cuts().parts;
    EXPECT_EQ(runtime.schedule(schedule::StepKind::train, microbatches)->reduce_units.size(),
              its_class == joined ? 2u : 3u);
  };
  on_classes(body, joined);
}

// The numbers of ranks need not follow the order of their places.
TEST(Classes, EveryRankReceivesTheCallsOfEachClass) {
  const mesh::Grid grid{{"a", 1}, {"b", 3}, {"c", 2}};
  const shard::Domain domain{.compute = {"a"}, .storage = {"b"}, .duplicates = {}, .replicas = {"c"}};
  for (const std::vector<int>& places : {std::vector<int>{0, 1, 2, 3, 5}, {3, 5, 0, 1, 2}, {1, 5, 0, 3, 2}})
    comm::run_local(5, {}, [&](comm::World& world) {
      shard::ParallelGroups parallel =
          shard::make_parallel_groups(world, {.mesh = mesh::Mesh({grid}, places), .domains = {domain}});
      const ParameterTable table({.mesh = parallel.mesh, .domains = parallel.domains}, parallel.rank, {}, {});
      const StepHistory history;
      Agreement agreement(parallel, history, table);
      const auto order_of = [&](int rank) {
        return schedule::CallOrder{
            .roles = {"gather"},
            .calls = {{0, "of a replica of " + std::to_string(parallel.mesh.group_of(rank, {"b"}).size()), 1}}};
      };
      const std::vector<schedule::CallOrder> orders = agreement.orders_of_classes(order_of(world.rank()));
      ASSERT_EQ(orders.size(), 2u);
      for (int rank = 0; rank < 5; ++rank)
        EXPECT_EQ(orders[static_cast<std::size_t>(parallel.class_of[static_cast<std::size_t>(rank)])], order_of(rank));
    });
}

TEST(Classes, AddTheirGradientsByTheirOwnSchedules) {
  run_classes(-1);
}

// The gradients that share a unit depend on the number of bytes on the ranks of a class.
TEST(Classes, MayJoinOtherGradients) {
  for (const int joined : {0, 1}) run_classes(-1, joined);
}

// After the departure, the ranks of this class would issue their sums over replicas in another order than the other
// ranks.
TEST(Classes, OneThatLeavesItsScheduleEndsTheRun) {
  for (const int reversed : {0, 1}) {
    try {
      run_classes(reversed);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("event 0: got 'train mb 0 forward consume w2 (0)', expected "
                                                     "'train mb 0 forward consume w0 (0)'"));
    }
  }
}

// Each schedule alone is correct, but the two have different orders of sums over replicas.
TEST(Classes, SchedulesThatDoNotMatchAreRefused) {
  for (const int reversed : {0, 1}) {
    try {
      on_classes([&](Runtime& runtime, int its_class) {
        for (int i = 0; i < 2; ++i) {
          step(runtime, false, -1, its_class == reversed);
          for (int id = 0; id < kWeights; ++id) runtime.program().publish(id);
        }
      });
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("the schedule of a train step is wrong: "));
    }
  }
}

TEST(Classes, OneWithoutAGradientThatOthersHaveEndsTheRun) {
  for (const int odd : {0, 1}) {
    try {
      on_classes([odd](Runtime& runtime, int its_class) { step(runtime, false, its_class == odd ? 1 : -1); });
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("give 'w1' a gradient on some ranks and none on others"));
    }
  }
  on_classes([](Runtime& runtime, int) {
    step(runtime, false, 1);
    EXPECT_EQ(runtime.statistics().unproduced, 1);
  });
}

}  // namespace
}  // namespace tessera::runtime
