// Tests backward weights. They are separate parameters that follow the weights, and only the runtime uses their ids.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"
#include "tessera/runtime/runtime.h"
#include "tests/shard/dense_parallel.h"

namespace tessera::runtime {
namespace {

using quant::Format;
using schedule::Pass;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

shard::ParameterSpec matrix_named(const std::string& name) {
  return {.name = name, .dims = {40, 32}, .compute = layout::replicated({40, 32}, 1)};
}

RuntimeOptions forward_and_backward(Format forward, Format backward) {
  return {.wire = {.format = forward, .rules = {{"plain", Format::bf16}}},
          .wire_backward = {{.format = backward, .rules = {{"plain", Format::bf16}}}}};
}

// Runs on three gtp ranks.
template <typename Body>
void with_runtime(const RuntimeOptions& options, Body body) {
  comm::run_local(3, {}, [&](comm::World& world) {
    shard::ParallelGroups parallel = shard::dense_parallel(world, 1, 3, 1, /*with_casts=*/true);
    Runtime runtime(parallel, {.model = quant::DType::bf16}, options);
    for (const char* name : {"second", "plain", "first"}) runtime.parameters().add(matrix_named(name));
    body(runtime);
  });
}

TEST(BackwardCopies, FollowAllWeights) {
  with_runtime(forward_and_backward(Format::nvfp4, Format::mxfp8), [](Runtime& runtime) {
    runtime.parameters().add_backward_weights();
    EXPECT_EQ(runtime.parameters().weights(), 3);
    EXPECT_EQ(runtime.parameters().size(), 5);
    EXPECT_EQ(runtime.parameters().backward_weight(0), 3);
    EXPECT_EQ(runtime.parameters().backward_weight(1), schedule::kNoParameter);
    EXPECT_EQ(runtime.parameters().backward_weight(2), 4);
    EXPECT_EQ(runtime.parameter(4).spec.name, "first (backward)");
    EXPECT_THAT(runtime.parameters().by_name(), ElementsAre(2, 1, 0));
    EXPECT_THAT(runtime.by_first_use(), ElementsAre(0, 1, 2));
    EXPECT_EQ(runtime.parameters().sizes().size(), 5U);
    const shard::ShardedParameter& backward_weight = runtime.parameter(3);
    EXPECT_EQ(backward_weight.master.size() + backward_weight.main_grad.size(), 0U);
    EXPECT_EQ(backward_weight.local_storage, runtime.parameter(0).local_storage);
  });
}

TEST(BackwardCopies, AreReadInBackwardPassesAndPublishedWithTheirWeights) {
  with_runtime(forward_and_backward(Format::mxfp8, Format::fp8), [](Runtime& runtime) {
    runtime.parameters().add_backward_weights();
    for (schedule::ParameterId id = 0; id < runtime.parameters().weights(); ++id) runtime.program().publish(id);
    EXPECT_EQ(runtime.parameter(3).version(), 1);
    for (int step = 0; step < 3; ++step) {
      runtime.program().begin_step(schedule::StepKind::train, 1);
      runtime.program().begin_microbatch(0);
      for (const Pass pass : {Pass::forward, Pass::recompute, Pass::backward}) {
        runtime.program().consume(0, {0, pass});
        runtime.program().release(0, {0, pass});
      }
      runtime.program().end_microbatch(0);
      runtime.program().end_step();
      runtime.program().publish(0);
      std::vector<schedule::ParameterId> used;
      for (const schedule::Event& event : runtime.trace())
        if (event.kind != schedule::EventKind::release) used.push_back(event.parameter);
      EXPECT_THAT(used, ElementsAre(0, 0, 3, 0, 3));
      EXPECT_THAT(runtime.by_first_use(), ElementsAre(0, 1, 2));
      EXPECT_EQ(runtime.parameter(3).version(), step + 2);
    }
    EXPECT_NE(runtime.schedule(schedule::StepKind::train, 1), nullptr);
  });
}

TEST(BackwardCopies, AreAddedOnceAndInTime) {
  with_runtime(forward_and_backward(Format::mxfp8, Format::fp8), [](Runtime& runtime) {
    EXPECT_THAT([&] { runtime.program().begin_step(schedule::StepKind::train, 1); },
                ThrowsMessage<Error>(HasSubstr("'second' has another format in backward passes")));
    runtime.parameters().add_backward_weights();
    EXPECT_THAT([&] { runtime.parameters().add_backward_weights(); }, ThrowsMessage<Error>(HasSubstr("added twice")));
    EXPECT_THAT([&] { runtime.parameters().add(matrix_named("late")); },
                ThrowsMessage<Error>(HasSubstr("after the backward weights")));
    EXPECT_THAT([&] { runtime.program().publish(4); }, ThrowsMessage<Error>(HasSubstr("weight 4 of 3")));
  });
}

// Products in the format of the wire read decoded values, which square tiles have in common for both passes.
TEST(DecodedWeights, AreUnpackedForProducts) {
  RuntimeOptions options = forward_and_backward(Format::nvfp4, Format::nvfp4);
  options.products = {.format = Format::nvfp4, .rules = {{"plain", Format::bf16}, {"second", Format::mxfp8}}};
  with_runtime(options, [](Runtime& runtime) {
    runtime.parameters().add_backward_weights();
    EXPECT_EQ(runtime.parameters().size(), 3);
    const schedule::ParameterId decoded = 2, values = 0;
    for (const schedule::ParameterId id : {decoded, values}) {
      shard::ShardedParameter& parameter = runtime.parameter(id);
      auto* const codes = reinterpret_cast<std::uint8_t*>(parameter.planes[0].data.data());
      std::fill_n(codes, parameter.planes[0].data.size(), std::uint8_t{0x72});  // 1 and 6
      auto* const scales = reinterpret_cast<std::uint8_t*>(parameter.planes[1].data.data());
      std::fill_n(scales, parameter.planes[1].data.size(), std::uint8_t{0x40});  // 2
      *reinterpret_cast<float*>(parameter.tensor_scale.data()) = 2688 * 8;
      runtime.program().publish(id);
    }
    runtime.program().begin_step(schedule::StepKind::train, 1);
    runtime.program().begin_microbatch(0);
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const WeightView view = runtime.program().consume(decoded, {0, pass});
      EXPECT_TRUE(view.is_decoded && !view.encoded);
      EXPECT_EQ(view.encoding, quant::weight_encoding(Format::nvfp4));
      EXPECT_EQ(*view.whole, 2688 * 8);
      EXPECT_EQ(view.weight().type, quant::DType::bf16);
      const auto* numbers = static_cast<const quant::bfloat16*>(view.weight().data);
      EXPECT_EQ(static_cast<float>(numbers[40 * 32 - 2]), 2);
      EXPECT_EQ(static_cast<float>(numbers[40 * 32 - 1]), 12);
      runtime.program().release(decoded, {0, pass});
      const WeightView unpacked = runtime.program().consume(values, {0, pass});
      EXPECT_FALSE(unpacked.is_decoded);
      EXPECT_EQ(static_cast<float>(static_cast<const quant::bfloat16*>(unpacked.weight().data)[1]), 96);
      runtime.program().release(values, {0, pass});
    }
    runtime.program().end_microbatch(0);
    runtime.program().end_step();
  });
}

}  // namespace
}  // namespace tessera::runtime
