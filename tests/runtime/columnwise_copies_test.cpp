// Tests columnwise copies: their bytes, the launches that make them, and their versions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"
#include "tessera/quant/formats/columnwise.h"
#include "tessera/runtime/runtime.h"
#include "tessera/schedule/plan/plan.h"
#include "tests/shard/dense_parallel.h"

namespace tessera::runtime {
namespace {

using quant::Format;
using schedule::Pass;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int kCopiedMicrobatches = 2;
constexpr int kCopiedWeights = 3;

struct CopiedCase {
  Format format;
  int gtp;
  std::int64_t budget;
};

class CopiedColumns : public ::testing::TestWithParam<CopiedCase> {
 protected:
  // Runs on gtp ranks. The small weights share a unit.
  template <typename Body>
  void with_runtime(Body body) {
    const CopiedCase& it = GetParam();
    comm::run_local(it.gtp, {}, [&](comm::World& world) {
      shard::ParallelGroups parallel = shard::dense_parallel(world, 1, it.gtp, 1, /*with_casts=*/true);
      RuntimeOptions options{.gather_budget = it.budget, .reduce_budget = schedule::kUnlimited};
      options.coalesce_bytes = 1 << 20;
      options.replay.poison = true;
      options.wire = {.format = it.format, .rules = {}};
      options.products = {.format = it.format, .rules = {}};
      Runtime runtime(parallel, {.model = quant::DType::bf16}, options);
      for (const auto& [name, rows] : {std::pair("large", 300), {"small", 20}, {"smaller", 12}})
        runtime.parameters().add(
            {.name = name, .dims = {rows, 136}, .compute = layout::replicated({rows, 136}, 1), .trainable = false});
      for (int id = 0; id < kCopiedWeights; ++id) write(runtime, id, 0);
      body(runtime);
    });
  }

  // Writes codes and scales that depend on the version, and publishes the weight.
  static void write(Runtime& runtime, int id, int version) {
    shard::ShardedParameter& parameter = runtime.parameter(id);
    for (shard::Plane& plane : parameter.planes)
      for (std::size_t i = 0; i < plane.data.size(); ++i)
        plane.data.data()[i] = static_cast<std::byte>(
            (i * 7 + static_cast<std::size_t>(id) * 31 + static_cast<std::size_t>(version) * 13) % 120);
    for (std::size_t i = 0; i < parameter.tensor_scale.size() / sizeof(float); ++i)
      reinterpret_cast<float*>(parameter.tensor_scale.data())[i] = static_cast<float>(version + id + 1);
    runtime.program().publish(id);
  }

  static void read(Runtime& runtime, int id, schedule::PassId pass) {
    const WeightView view = runtime.program().consume(id, pass);
    ASSERT_TRUE(view.encoded);
    EXPECT_EQ(view.columnwise.has_value(), pass.pass == Pass::backward);
    if (view.columnwise) {
      const quant::Extent matrix{.rows = id == 0 ? 300 : id == 1 ? 20 : 12, .cols = 136};
      const quant::ColumnwiseLayout layout = quant::columnwise_layout(view.encoding, matrix);
      std::vector<std::byte> expected(static_cast<std::size_t>(layout.bytes()));
      transpose(quant::columnwise_copy(*view.encoded, matrix, view.encoding, expected.data()));
      const quant::Quantized target = layout.at(expected.data());
      EXPECT_EQ(std::memcmp(view.columnwise->data, target.data, static_cast<std::size_t>(layout.codes.elements())), 0);
      EXPECT_EQ(std::memcmp(view.columnwise->scales, target.scales,
                            sizeof(float) * static_cast<std::size_t>(layout.scales.elements())),
                0);
    }
    runtime.program().release(id, pass);
  }

  // `between` is called after the first microbatch.
  template <typename Between>
  static void step(Runtime& runtime, Between between) {
    runtime.program().begin_step(schedule::StepKind::train, kCopiedMicrobatches);
    for (int microbatch = 0; microbatch < kCopiedMicrobatches; ++microbatch) {
      runtime.program().begin_microbatch(microbatch);
      for (int id = 0; id < kCopiedWeights; ++id) read(runtime, id, {microbatch, Pass::forward});
      for (int id = kCopiedWeights - 1; id >= 0; --id) read(runtime, id, {microbatch, Pass::backward});
      runtime.program().end_microbatch(microbatch);
      if (microbatch == 0) between();
    }
    runtime.program().end_step();
  }
};

TEST_P(CopiedColumns, AreMadeOnceByOneLaunchForAUnitIfTheBudgetAllows) {
  with_runtime([&](Runtime& runtime) {
    for (int number = 0; number < 4; ++number) {
      step(runtime, [] {});
      const bool is_recorded = number == 0, keeps = GetParam().budget == schedule::kUnlimited;
      constexpr int units = 2;
      const int expected = is_recorded ? kCopiedWeights * kCopiedMicrobatches
                           : keeps     ? units
                                       : units * kCopiedMicrobatches;
      EXPECT_EQ(runtime.statistics().columnwise_copies, expected) << number;
      EXPECT_EQ(runtime.statistics().recorded, is_recorded);
      for (int id = 0; id < kCopiedWeights; ++id) write(runtime, id, number + 1);
    }
  });
}

// The schedule does not know a new version that is made inside the step.
TEST_P(CopiedColumns, AreInvalidOnceTheWeightHasANewVersion) {
  const bool in_place = GetParam().gtp == 1, keeps = GetParam().budget == schedule::kUnlimited;
  with_runtime([&](Runtime& runtime) {
    step(runtime, [] {});
    for (int id = 0; id < kCopiedWeights; ++id) write(runtime, id, 1);
    const auto publishes_between = [&] { step(runtime, [&] { runtime.parameter(0).make_version(); }); };
    if (in_place && !keeps) return publishes_between();  // each backward pass makes a copy of the newest version
    EXPECT_THAT(publishes_between,
                ThrowsMessage<Error>(HasSubstr(in_place ? "the columnwise copy of 'large' was made from version"
                                                        : "'large' was gathered in another version")));
  });
}

std::string name_of_copied(const ::testing::TestParamInfo<CopiedCase>& info) {
  return std::string(name_of(info.param.format)) + "_gtp" + std::to_string(info.param.gtp) +
         (info.param.budget == schedule::kMinimum ? "_min" : "_unlimited");
}
INSTANTIATE_TEST_SUITE_P(Cases, CopiedColumns,
                         ::testing::Values(CopiedCase{Format::fp8, 1, schedule::kUnlimited},
                                           CopiedCase{Format::fp8_block, 1, schedule::kMinimum},
                                           CopiedCase{Format::fp8_block, 2, schedule::kUnlimited},
                                           CopiedCase{Format::fp8, 3, schedule::kMinimum}),
                         name_of_copied);

}  // namespace
}  // namespace tessera::runtime
