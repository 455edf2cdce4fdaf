// Tests gradients that layers write directly to main_grad (RuntimeOptions::one_microbatch) in steps that have no
// schedule, follow their schedule, and depart from it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "tessera/comm/local/world.h"
#include "tessera/quant/floating.h"
#include "tessera/runtime/runtime.h"
#include "tests/shard/dense_parallel.h"

namespace tessera::runtime {
namespace {

using quant::bfloat16;
using schedule::ParameterId;
using ::testing::Each;

constexpr std::int64_t kRows = 5, kCols = 7;

shard::ParameterSpec spec(const char* name, bool produced_once) {
  return {.name = name,
          .dims = {kRows, kCols},
          .compute = layout::replicated({kRows, kCols}, 1),
          .produced_once = produced_once};
}

// Writes `value` to all elements of the gradient.
void produce(Runtime& runtime, ParameterId id, float value) {
  const GradientBuffer buffer = runtime.program().grad_buffer(id, 0);
  EXPECT_FALSE(buffer.accumulate);
  if (buffer.dtype == quant::DType::bf16)
    std::fill_n(static_cast<bfloat16*>(buffer.data), kRows * kCols, bfloat16(value));
  else
    std::fill_n(static_cast<float*>(buffer.data), kRows * kCols, value);
  runtime.program().produce(id, 0);
}

std::vector<float> written_gradient(Runtime& runtime, ParameterId id) {
  shard::ShardedParameter& parameter = runtime.parameter(id);
  EXPECT_TRUE(parameter.written_by_layers);
  EXPECT_EQ(parameter.gradient_type(), quant::DType::bf16);
  std::vector<float> values;
  for (const bfloat16 element : parameter.main_grad.as<bfloat16>()) values.push_back(static_cast<float>(element));
  EXPECT_EQ(values.size(), static_cast<std::size_t>(kRows * kCols));
  return values;
}

TEST(OneMicrobatch, GradientsOfDepartedStepsAreWrittenAndMissingGradientsAreZero) {
  comm::run_local(1, {}, [](comm::World& world) {
    shard::ParallelGroups parallel = shard::dense_parallel(world, 1, 1, 1);
    RuntimeOptions options{.one_microbatch = true};
    options.replay.poison = true;
    Runtime runtime(parallel, {.model = quant::DType::bf16, .wire = quant::DType::bf16}, options);
    const ParameterId always = runtime.parameters().add(spec("always", true));
    const ParameterId sometimes = runtime.parameters().add(spec("sometimes", true));
    const ParameterId summed = runtime.parameters().add(spec("summed", false));
    for (const ParameterId id : {always, sometimes, summed}) runtime.program().publish(id);
    // Step 0 is recorded. Steps 2, 4, 5 and 6 depart from the schedule, because a gradient is missing. Step 7 follows a
    // new schedule without this gradient, and step 8 departs from the new schedule.
    const std::vector<bool> has_gradient = {true, true, false, true, false, false, false, false, true};
    for (std::size_t step = 0; step < has_gradient.size(); ++step) {
      const auto value = static_cast<float>(step + 1);
      runtime.program().begin_step(schedule::StepKind::train, 1);
      runtime.program().begin_microbatch(0);
      produce(runtime, summed, value);
      if (has_gradient[step]) produce(runtime, sometimes, value);
      produce(runtime, always, value);
      runtime.program().end_microbatch(0);
      runtime.program().end_step();
      EXPECT_THAT(written_gradient(runtime, always), Each(value)) << "step " << step;
      EXPECT_THAT(written_gradient(runtime, sometimes), Each(has_gradient[step] ? value : 0)) << "step " << step;
      EXPECT_THAT(runtime.parameter(summed).main_grad.as<float>(), Each(value)) << "step " << step;
      EXPECT_EQ(runtime.statistics().unproduced, has_gradient[step] ? 0 : 1) << "step " << step;
      for (const ParameterId id : {always, sometimes, summed}) runtime.program().publish(id);
    }
    EXPECT_EQ(runtime.schedule_statistics().planned, 2);
    EXPECT_EQ(runtime.schedule_statistics().departed_steps, 5);
  });
}

}  // namespace
}  // namespace tessera::runtime
