// The runtime compared with a dense reference on every mesh: gathered weights have equal bits, and gradients are added
// in the order of docs/numerics.md.
#include "tessera/runtime/runtime.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"
#include "tessera/quant/bfloat16.h"
#include "tessera/rendezvous/boards/board.h"
#include "tests/runtime/elements.h"
#include "tests/shard/dense_parallel.h"

namespace tessera::runtime {
namespace {

struct Sizes {
  int tp, gtp, dp;
};

// The logical element at index i of parameter p.
float weight_value(int p, std::int64_t i) {
  return static_cast<float>(std::int64_t{p} * 1000 + i) * 0.37f;
}
// Returns the contribution of block `block` on tp rank `tp` (0 if contributions are whole).
float gradient_value(int p, int block, int tp, std::int64_t i) {
  return 1.0f / static_cast<float>(
                    1 + ((i * 31 + std::int64_t{p} * 17 + std::int64_t{block} * 7 + std::int64_t{tp} * 3) % 97)) -
         0.01f * static_cast<float>(block);
}

// Column-parallel stacked, row-parallel, overlapping rows, replicated.
std::vector<shard::ParameterSpec> specs(int tp, bool partial) {
  const std::int64_t overlapping = 2 * std::int64_t{tp} + 3;
  std::vector<std::vector<layout::Range>> overlap;
  for (int rank = 0; rank < tp; ++rank)
    overlap.push_back({{std::int64_t{rank} * 2, std::int64_t{rank} * 2 + 2}, {overlapping - 3, overlapping}});
  return {
      {.name = "stacked", .dims = {14, 5}, .compute = layout::cut_rows({14, 5}, {{"a", 7}, {"b", 7}}, tp)},
      {.name = "columns", .dims = {6, 7}, .compute = layout::cut_cols({6, 7}, tp)},
      {.name = "overlap", .dims = {overlapping, 4}, .compute = layout::rows_by_rank({overlapping, 4}, overlap)},
      {.name = "norm",
       .dims = {9},
       .compute = layout::replicated({1, 9}, tp),
       .sharded = false,
       .partial_gradient = partial},
  };
}

std::vector<int> holders(const shard::ParameterSpec& spec, std::int64_t index) {
  std::vector<int> found;
  for (int rank = 0; rank < spec.compute.size(); ++rank)
    for_each_element(spec.compute.ranks[static_cast<std::size_t>(rank)], spec.compute.shape.cols,
                     [&](std::int64_t, std::int64_t at) {
                       if (at == index) found.push_back(rank);
                     });
  return found;
}

// main_grad of one replica as one process would compute it: blocks in order, tp parts first.
float expected_gradient(const shard::ParameterSpec& spec, int p, int blocks, int first_block, std::int64_t index) {
  float sum = 0;
  const bool parts = spec.sharded || spec.partial_gradient;
  for (int block = 0; block < blocks; ++block) {
    float part = 0;
    bool first = true;
    for (int tp : holders(spec, index)) {
      const float value = gradient_value(p, first_block + block, parts ? tp : 0, index);
      part = first ? value : part + value;
      first = false;
      if (!parts) break;
    }
    sum = block == 0 ? part : sum + part;
  }
  return sum;
}

void fill_weights(Runtime& runtime) {
  for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id) {
    shard::ShardedParameter& parameter = runtime.parameter(id);
    auto data = parameter.weight().as<float>();
    for_each_element(parameter.local_storage, parameter.storage.shape.cols, [&](std::int64_t at, std::int64_t i) {
      data[static_cast<std::size_t>(at)] = weight_value(id, i);
    });
    runtime.program().publish(id);
  }
}

void run_microbatch(Runtime& runtime, int microbatch, int block, bool skip_first) {
  runtime.program().begin_microbatch(microbatch);
  for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id) {
    const shard::ShardedParameter& parameter = runtime.parameter(id);
    const WeightView view = runtime.program().consume(id, {microbatch, schedule::Pass::forward});
    const auto* weight = static_cast<const float*>(view.weight().data);
    for_each_element(parameter.local_compute, parameter.storage.shape.cols, [&](std::int64_t at, std::int64_t i) {
      ASSERT_EQ(weight[at], weight_value(id, i)) << parameter.spec.name << " element " << i;
    });
    runtime.program().release(id, {microbatch, schedule::Pass::forward});
    if (skip_first && id == 0) continue;
    const GradientBuffer buffer = runtime.program().grad_buffer(id, microbatch);
    EXPECT_FALSE(buffer.accumulate);
    const bool parts = parameter.spec.sharded || parameter.spec.partial_gradient;
    const int tp = parts ? runtime.parallel().place().compute : 0;
    for_each_element(parameter.local_compute, parameter.storage.shape.cols, [&](std::int64_t at, std::int64_t i) {
      static_cast<float*>(buffer.data)[at] = gradient_value(id, block, tp, i);
    });
    runtime.program().produce(id, microbatch);
  }
  runtime.program().end_microbatch(microbatch);
}

void check_gradients(Runtime& runtime, int blocks_a_replica, bool skipped_first) {
  const int replicas = runtime.parallel().cuts().replicas;
  for (schedule::ParameterId id = skipped_first ? 1 : 0; id < runtime.parameters().size(); ++id) {
    const shard::ShardedParameter& parameter = runtime.parameter(id);
    const auto data = parameter.main_grad.as<float>();
    for_each_element(parameter.local_storage, parameter.storage.shape.cols, [&](std::int64_t at, std::int64_t i) {
      float expected = expected_gradient(parameter.spec, id, blocks_a_replica, 0, i);
      for (int d = 1; d < replicas; ++d)
        expected = expected + expected_gradient(parameter.spec, id, blocks_a_replica, d * blocks_a_replica, i);
      ASSERT_EQ(data[static_cast<std::size_t>(at)], expected) << parameter.spec.name << " element " << i;
    });
  }
}

class RuntimeOnMesh : public ::testing::TestWithParam<Sizes> {};

TEST_P(RuntimeOnMesh, GathersWeightsAndReducesGradientsAsADenseReference) {
  const auto [tp, gtp, dp] = GetParam();
  for (bool partial : {false, true}) {
    comm::run_local(tp * gtp * dp, {}, [&, tp = tp, gtp = gtp, dp = dp](comm::World& world) {
      shard::ParallelGroups parallel = shard::dense_parallel(world, tp, gtp, dp);
      Runtime runtime(parallel, {});
      for (shard::ParameterSpec& spec : specs(tp, partial)) runtime.parameters().add(std::move(spec));
      fill_weights(runtime);
      constexpr int microbatches = 3;
      const int blocks = microbatches * gtp;  // number of blocks of a replica
      for (int step = 0; step < 2; ++step) {
        runtime.program().begin_step(schedule::StepKind::train, microbatches);
        for (int mb = 0; mb < microbatches; ++mb)
          run_microbatch(runtime, mb, parallel.place().replica * blocks + mb * gtp + parallel.place().part, false);
        runtime.program().end_step();
        check_gradients(runtime, blocks, false);
      }
    });
  }
}

TEST_P(RuntimeOnMesh, AParameterWithoutAGradientHasGradientZero) {
  const auto [tp, gtp, dp] = GetParam();
  comm::run_local(tp * gtp * dp, {}, [tp = tp, gtp = gtp, dp = dp](comm::World& world) {
    shard::ParallelGroups parallel = shard::dense_parallel(world, tp, gtp, dp);
    Runtime runtime(parallel, {});
    for (shard::ParameterSpec& spec : specs(tp, true)) runtime.parameters().add(std::move(spec));
    fill_weights(runtime);
    for (float& element : runtime.parameter(0).main_grad.as<float>()) element = 7;
    runtime.program().begin_step(schedule::StepKind::train, 1);
    run_microbatch(runtime, 0, parallel.place().replica * gtp + parallel.place().part, true);
    runtime.program().end_step();
    check_gradients(runtime, gtp, true);
    for (const float element : runtime.parameter(0).main_grad.as<float>()) EXPECT_EQ(element, 0);
    EXPECT_EQ(runtime.statistics().unproduced, 1);
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, RuntimeOnMesh,
                         ::testing::Values(Sizes{1, 1, 1}, Sizes{1, 3, 1}, Sizes{2, 1, 1}, Sizes{2, 2, 1},
                                           Sizes{3, 2, 1}, Sizes{1, 2, 2}, Sizes{1, 8, 1}, Sizes{2, 3, 2},
                                           Sizes{8, 1, 1}),
                         [](const auto& info) {
                           return "tp" + std::to_string(info.param.tp) + "gtp" + std::to_string(info.param.gtp) + "dp" +
                                  std::to_string(info.param.dp);
                         });

// One rank, one 2 x 3 parameter: for the rules of calling.
struct Single {
  explicit Single(comm::World& world) : parallel(shard::dense_parallel(world, 1, 1, 1)), runtime(parallel, {}) {
    id = runtime.parameters().add({.name = "w", .dims = {2, 3}, .compute = layout::replicated({2, 3}, 1)});
  }
  shard::ParallelGroups parallel;
  Runtime runtime;
  schedule::ParameterId id = 0;
};

TEST(Runtime, RefusesCallsOutOfOrder) {
  comm::run_local(1, {}, [](comm::World& world) {
    Single single(world);
    Runtime& runtime = single.runtime;
    EXPECT_THROW(runtime.program().consume(single.id, {0, schedule::Pass::forward}), Error);
    EXPECT_THROW(runtime.program().end_step(), Error);
    EXPECT_THROW(runtime.program().begin_step(schedule::StepKind::train, 0), Error);
    runtime.program().begin_step(schedule::StepKind::train, 1);
    EXPECT_THROW(runtime.program().begin_step(schedule::StepKind::train, 1), Error);
    EXPECT_THROW(runtime.program().end_step(), Error);  // a microbatch is missing
    EXPECT_THROW(runtime.program().begin_microbatch(1), Error);
    runtime.program().begin_microbatch(0);
    EXPECT_THROW(runtime.program().produce(single.id, 0), Error);
    EXPECT_THROW(runtime.program().release(single.id, {0, schedule::Pass::forward}), Error);
    EXPECT_THROW(runtime.program().consume(7, {0, schedule::Pass::forward}), Error);
    runtime.program().consume(single.id, {0, schedule::Pass::forward});
    EXPECT_THROW(runtime.program().end_microbatch(0), Error);
    EXPECT_THROW(runtime.program().publish(single.id), Error);
    runtime.program().release(single.id, {0, schedule::Pass::forward});
    runtime.program().end_microbatch(0);
    EXPECT_THROW(runtime.program().begin_microbatch(1), Error);
    runtime.program().end_step();
    EXPECT_THROW(runtime.parameters().add({.name = "w", .dims = {1, 1}, .compute = layout::replicated({1, 1}, 1)}),
                 Error);
  });
}

TEST(Runtime, HasOneOpenMicrobatch) {
  using ::testing::HasSubstr;
  using ::testing::ThrowsMessage;
  comm::run_local(1, {}, [](comm::World& world) {
    Single single(world);
    Program& program = single.runtime.program();
    const std::int64_t count = 1;
    float number = 0;
    program.begin_step(schedule::StepKind::train, 2);
    program.begin_microbatch(0);
    EXPECT_THAT([&] { program.begin_microbatch(1); },
                ThrowsMessage<Error>(HasSubstr("microbatch 1 begins while microbatch 0 is open, but a running program "
                                               "has one open microbatch")));
    const auto is_closed = ThrowsMessage<Error>(HasSubstr("microbatch 1 is not open"));
    EXPECT_THAT([&] { program.consume(single.id, {1}); }, is_closed);
    EXPECT_THAT([&] { program.grad_buffer(single.id, 1); }, is_closed);
    EXPECT_THAT([&] { program.issue({.out = &number, .counts = {&count, 1}, .pass = {1}}); }, is_closed);
    EXPECT_THAT([&] { program.end_microbatch(1); }, is_closed);
    program.consume(single.id, {0});
    EXPECT_THAT([&] { program.release(single.id, {1}); }, is_closed);
    program.release(single.id, {0});
    program.end_microbatch(0);
    program.begin_microbatch(1);
    EXPECT_THAT([&] { program.consume(single.id, {0}); }, ThrowsMessage<Error>(HasSubstr("microbatch 0 is not open")));
    program.end_microbatch(1);
    program.end_step();
  });
}

// The record of a step that ranks post has a bounded size.
TEST(Runtime, AStepMayHaveManyMicrobatches) {
  constexpr int many = 20'000;  // the hashes of this many events do not fit into a posted status
  static_assert(many * sizeof(std::uint64_t) > rendezvous::kLongestStatus);
  comm::run_local(2, {}, [](comm::World& world) {
    shard::ParallelGroups parallel = shard::dense_parallel(world, 1, 1, 2);
    Runtime runtime(parallel, {});
    const schedule::ParameterId id =
        runtime.parameters().add({.name = "w", .dims = {2, 3}, .compute = layout::replicated({2, 3}, 1)});
    for (int step = 0; step < 2; ++step) {  // the first step is recorded, the second follows a schedule
      runtime.program().begin_step(schedule::StepKind::evaluate, many);
      for (int i = 0; i < many; ++i) {
        runtime.program().begin_microbatch(i);
        runtime.program().consume(id, {i, schedule::Pass::forward});
        runtime.program().release(id, {i, schedule::Pass::forward});
        runtime.program().end_microbatch(i);
      }
      runtime.program().end_step();
    }
    EXPECT_EQ(runtime.trace().size(), 2U * many);
  });
}

TEST(Runtime, ASecondUseInAMicrobatchAccumulates) {
  comm::run_local(1, {}, [](comm::World& world) {
    Single single(world);
    Runtime& runtime = single.runtime;
    runtime.program().begin_step(schedule::StepKind::train, 1);
    runtime.program().begin_microbatch(0);
    for (int use = 0; use < 2; ++use) {
      const GradientBuffer buffer = runtime.program().grad_buffer(single.id, 0);
      EXPECT_EQ(buffer.accumulate, use == 1);
      auto* data = static_cast<float*>(buffer.data);
      for (int i = 0; i < 6; ++i) data[i] = (buffer.accumulate ? data[i] : 0.0f) + static_cast<float>(i + 1);
      runtime.program().produce(single.id, 0);
    }
    runtime.program().end_microbatch(0);
    runtime.program().end_step();
    const auto gradient = runtime.parameter(single.id).main_grad.as<float>();
    for (int i = 0; i < 6; ++i) EXPECT_EQ(gradient[static_cast<std::size_t>(i)], 2.0f * static_cast<float>(i + 1));
  });
}

// A gradient that the product rounds is added like a gradient that the exchange rounds.
TEST(Runtime, AGradientProducedOnceIsStagedInTheWireType) {
  const shard::ParameterTypes types{.wire = quant::DType::bf16};
  std::vector<std::vector<float>> sums;
  for (const bool once : {false, true}) {
    comm::run_local(3, {}, [&](comm::World& world) {
      shard::ParallelGroups parallel = shard::dense_parallel(world, 1, 3, 1);
      Runtime runtime(parallel, types);
      const schedule::ParameterId id = runtime.parameters().add(
          {.name = "w", .dims = {5, 40}, .compute = layout::replicated({5, 40}, 1), .produced_once = once});
      EXPECT_EQ(runtime.parameters().sizes()[0].staging,
                once ? 512 : 1024 + 512);  // 200 fp32 elements, aligned, followed by the rounded elements
      runtime.program().begin_step(schedule::StepKind::train, 1);
      runtime.program().begin_microbatch(0);
      const GradientBuffer buffer = runtime.program().grad_buffer(id, 0);
      EXPECT_EQ(buffer.dtype, once ? quant::DType::bf16 : quant::DType::fp32);
      for (int i = 0; i < 200; ++i) {
        const float value = gradient_value(0, world.rank(), 0, i);
        if (once)
          static_cast<quant::bfloat16*>(buffer.data)[i] = quant::bfloat16(value);
        else
          static_cast<float*>(buffer.data)[i] = value;
      }
      runtime.program().produce(id, 0);
      if (once) {
        EXPECT_THROW(runtime.program().grad_buffer(id, 0), Error);
      }
      runtime.program().end_microbatch(0);
      runtime.program().end_step();
      if (world.rank() != 0) return;
      const auto sum = runtime.parameter(id).main_grad.as<float>();
      sums.emplace_back(sum.begin(), sum.end());
    });
  }
  ASSERT_EQ(sums.size(), 2u);
  EXPECT_EQ(sums[0], sums[1]);
}

TEST(Runtime, EventsHaveIdentities) {
  comm::run_local(1, {}, [](comm::World& world) {
    Single single(world);
    Runtime& runtime = single.runtime;
    std::array<float, 16> numbers{};
    const auto count = static_cast<std::int64_t>(numbers.size());
    runtime.program().begin_step(schedule::StepKind::evaluate, 2);
    for (int mb = 0; mb < 2; ++mb) {
      runtime.program().begin_microbatch(mb);
      for (int use = 0; use < 2; ++use) {
        runtime.program().consume(single.id, {mb, schedule::Pass::forward});
        runtime.program().release(single.id, {mb, schedule::Pass::forward});
      }
      runtime.program().wait(runtime.program().issue({.out = numbers.data(), .counts = {&count, 1}, .pass = {mb}}));
      runtime.program().end_microbatch(mb);
    }
    runtime.program().end_step();
    const schedule::Trace& trace = runtime.trace();
    ASSERT_EQ(trace.size(), 10u);
    for (std::size_t i = 0; i < trace.size(); ++i)
      for (std::size_t j = 0; j < i; ++j) EXPECT_FALSE(trace[i] == trace[j]) << to_string(trace[i]);
    EXPECT_EQ(to_string(trace[2], {"w"}), "evaluate mb 0 forward consume w (1)");
    EXPECT_EQ(to_string(trace[9]), "evaluate mb 1 forward comm users all_reduce sum 64 bytes");
  });
}

TEST(ParallelGroups, ARunMustFillTheMesh) {
  const auto too_many = [](comm::World& world) { shard::dense_parallel(world, 2, 1, 1); };
  EXPECT_THAT([&] { comm::run_local(3, {}, too_many); },
              ::testing::ThrowsMessage<InputError>(
                  ::testing::HasSubstr("users 2 x keepers 1 x replicas 1 = 2 ranks, but the run has 3")));
}

}  // namespace
}  // namespace tessera::runtime
