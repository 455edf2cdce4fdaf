// Checks that the ranks of a mesh, which cast from their parts of the masters, write the same bytes as a single rank
// with whole masters. Every rank reads the values of the quantized whole, in every format. On some meshes, shards begin
// inside tiles or ranks are empty.
#include "tessera/train/update/weight_cast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tessera/comm/local/world.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/shard/formats/encoded.h"
#include "tests/runtime/elements.h"

namespace tessera::train {
namespace {

using quant::Format;

struct CastMesh {
  int tp, gtp, dp;
};

class CastOnMesh : public ::testing::TestWithParam<CastMesh> {};

// Returns element i of a parameter's master: large and small numbers, zeros, an infinity, a NaN.
float master_value(schedule::ParameterId id, int round, std::int64_t i) {
  if (i % 97 == 5) return 0;
  if (id == 1 && i == 131) return INFINITY;
  if (id == 2 && i == 77) return NAN;
  const auto mixed = static_cast<std::uint32_t>((i * 2654435761 + id * 40503 + round * 977) & 0xFFFFFF);
  return (static_cast<float>(mixed) * 0x1p-23F - 1) * std::exp2(static_cast<float>(i % 13) - 9);
}

// A matrix that is sharded by rows in two blocks, a matrix that is sharded by columns, and a matrix smaller than a
// tile.
std::vector<shard::ParameterSpec> specs(int tp) {
  return {{.name = "stacked", .dims = {86, 72}, .compute = layout::cut_rows({86, 72}, {{"a", 43}, {"b", 43}}, tp)},
          {.name = "columns", .dims = {300, 144}, .compute = layout::cut_cols({300, 144}, tp, 2)},
          {.name = "rows", .dims = {50, 34}, .compute = layout::cut_rows({50, 34}, {{"all", 50}}, tp)},
          {.name = "small", .dims = {3, 4}, .compute = layout::cut_cols({3, 4}, tp, 2)}};
}

struct ExpectedWeight {
  std::vector<std::uint8_t> data, scales;  // empty without an encoding
  std::vector<quant::bfloat16> values;
};

// Returns the tp-local part of weight `id` in the number format of `parameter`, which is the weight or its
// backward_weight. It is quantized from the whole tp-local matrix with the amax of the logical matrix.
ExpectedWeight expected_weight(const shard::ShardedParameter& parameter, schedule::ParameterId id, int round) {
  const quant::Extent extent = shard::extent_of(parameter.local_compute);
  std::vector<float> values(static_cast<std::size_t>(extent.elements()));
  runtime::for_each_element(
      parameter.local_compute, parameter.storage.shape.cols,
      [&](std::int64_t at, std::int64_t i) { values[static_cast<std::size_t>(at)] = master_value(id, round, i); });
  float tensor_amax = 0;
  for (std::int64_t i = 0; i < parameter.storage.shape.elements(); ++i) {
    const float magnitude = std::fabs(static_cast<float>(quant::bfloat16(master_value(id, round, i))));
    if (magnitude > tensor_amax) tensor_amax = magnitude;
  }
  ExpectedWeight result{.data = {}, .scales = {}, .values = std::vector<quant::bfloat16>(values.size())};
  if (!parameter.spec.encoding) {
    std::ranges::transform(values, result.values.begin(), [](float value) { return quant::bfloat16(value); });
    return result;
  }
  const quant::Encoding& encoding = *parameter.spec.encoding;
  const auto tiles = static_cast<std::size_t>(quant::scale_extent(encoding, extent).elements());
  std::vector<float> amaxes(tiles), multipliers(tiles), scales(tiles);
  const quant::Source source{.data = values.data(), .type = quant::DType::fp32};
  const quant::Slice whole{.end = extent.elements()};
  take_amaxes(source, extent, encoding.tile, whole, amaxes);
  if (tiles == 1 && encoding.tile == quant::ScaleTile{}) amaxes[0] = tensor_amax;
  make_scales(encoding, amaxes, tensor_amax, multipliers, scales.data());
  result.data.resize(static_cast<std::size_t>(quant::data_bytes(encoding.element, extent.elements())));
  quant::cast(source, extent, encoding, whole, multipliers, result.data.data());
  dequantize({.data = result.data.data(), .scales = scales.data(), .tensor_amax = &tensor_amax}, extent, encoding,
             result.values.data());
  result.scales.resize(tiles * quant::size_of(quant::scale_type(encoding.scale)));
  std::memcpy(result.scales.data(), scales.data(), result.scales.size());
  return result;
}

void write_masters(runtime::Runtime& runtime, int round) {
  for (schedule::ParameterId id = 0; id < runtime.parameters().weights(); ++id) {
    shard::ShardedParameter& parameter = runtime.parameter(id);
    auto* master = reinterpret_cast<float*>(parameter.state_master());
    runtime::for_each_element(parameter.local_state, parameter.storage.shape.cols,
                              [&](std::int64_t at, std::int64_t i) { master[at] = master_value(id, round, i); });
  }
}

void check_view(const runtime::WeightView& view, const ExpectedWeight& expected, const std::string& name, int round) {
  if (view.encoded) {
    EXPECT_EQ(std::memcmp(view.encoded->data, expected.data.data(), expected.data.size()), 0) << name << " " << round;
    EXPECT_EQ(std::memcmp(view.encoded->scales, expected.scales.data(), expected.scales.size()), 0)
        << name << " in round " << round;
    return;
  }
  ASSERT_EQ(view.weight().type, quant::DType::bf16);
  EXPECT_EQ(std::memcmp(view.weight().data, expected.values.data(), expected.values.size() * sizeof expected.values[0]),
            0)
      << name << " in round " << round;
}

// Acts like an update that computes the amaxes of whole weights in its own pass.
bool take_amaxes_before(runtime::Runtime& runtime, WeightCast& cast, std::span<const schedule::ParameterId> bucket) {
  const std::vector<float*> places = cast.places_of_amaxes(bucket);
  for (std::size_t i = 0; i < places.size(); ++i) {
    shard::ShardedParameter& parameter = runtime.parameter(bucket[i]);
    const std::int64_t count = parameter.state_elements();
    quant::take_amaxes({parameter.state_master(), quant::DType::fp32}, {.rows = 1, .cols = count}, {}, {.end = count},
                       {places[i], 1});
  }
  return !places.empty();
}

void check_weights(runtime::Runtime& runtime, int round) {
  runtime.program().begin_step(schedule::StepKind::evaluate, 1);
  runtime.program().begin_microbatch();
  for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id) {
    const runtime::WeightView view = runtime.program().consume(id, schedule::Pass::forward);
    check_view(view, expected_weight(runtime.parameter(id), id, round), runtime.parameter(id).spec.name, round);
    runtime.program().release(id, schedule::Pass::forward);
  }
  runtime.program().end_microbatch();
  runtime.program().end_step();
}

TEST_P(CastOnMesh, GivesTheBytesOfTheWholeMatrix) {
  const CastMesh mesh = GetParam();
  for (const Format format : {Format::fp8, Format::fp8_block, Format::mxfp8, Format::nvfp4})
    for (const bool zero : {false, true})
      comm::run_local(mesh.tp * mesh.gtp * mesh.dp, {}, [&](comm::World& world) {
        SCOPED_TRACE(name_of(format));
        shard::ParallelGroups parallel = shard::make_parallel_groups(
            world, nn::rank_layout({.tp = mesh.tp, .gtp = mesh.gtp, .dp = mesh.dp}), /*with_casts=*/true);
        runtime::Runtime runtime(parallel, {.model = quant::DType::bf16},
                                 {.zero = zero,
                                  .gather_budget = schedule::kMinimum,
                                  .coalesce_bytes = zero ? 0 : 1 << 16,
                                  .replay = {.poison = true},
                                  .wire = {.format = format}});
        for (shard::ParameterSpec& spec : specs(mesh.tp)) runtime.parameters().add(std::move(spec));
        WeightCast cast(runtime);
        const std::vector<std::vector<schedule::ParameterId>> buckets{{2, 0}, {3, 1}};
        for (int round = 0; round < 4; ++round) {  // first on demand, then by a schedule
          write_masters(runtime, round);
          for (const std::vector<schedule::ParameterId>& bucket : buckets) {
            const bool has_amaxes = round % 2 == 1 && take_amaxes_before(runtime, cast, bucket);
            EXPECT_EQ(has_amaxes, round % 2 == 1 && format == Format::fp8);
            cast.cast(bucket, has_amaxes);
            runtime.program().publish(bucket);
          }
          check_weights(runtime, round);
        }
        const runtime::ScheduleStatistics schedules = runtime.schedule_statistics();
        EXPECT_EQ(schedules.gather_arena_bytes, runtime.schedule(schedule::StepKind::evaluate, 1)->gather_arena);
        EXPECT_EQ(schedules.gather_peak_bytes, schedules.gather_arena_bytes);
      });
}

// Runs a step in which every weight is read in both passes.
void check_both_passes(runtime::Runtime& runtime, int round) {
  runtime.program().begin_step(schedule::StepKind::train, 1);
  runtime.program().begin_microbatch();
  for (const schedule::Pass pass : {schedule::Pass::forward, schedule::Pass::recompute, schedule::Pass::backward})
    for (schedule::ParameterId id = 0; id < runtime.parameters().weights(); ++id) {
      const schedule::ParameterId backward_weight = runtime.parameters().backward_weight(id);
      const bool reads_backward_weight = pass == schedule::Pass::backward && backward_weight != schedule::kNoParameter;
      const shard::ShardedParameter& read = runtime.parameter(reads_backward_weight ? backward_weight : id);
      const runtime::WeightView view = runtime.program().consume(id, pass);
      ASSERT_EQ(view.encoded.has_value(), read.spec.product == Format::mxfp8);
      EXPECT_TRUE(!view.encoded || view.encoding == *read.spec.encoding);
      check_view(view, expected_weight(read, id, round), read.spec.name, round);
      runtime.program().release(id, pass);
    }
  runtime.program().end_microbatch();
  runtime.program().end_step();
}

TEST_P(CastOnMesh, AlsoWritesCopiesForBackwardPasses) {
  const CastMesh mesh = GetParam();
  struct Formats {
    Format forward, backward, product;
  };
  for (const Formats& formats :
       {Formats{Format::mxfp8, Format::mxfp8, Format::mxfp8}, Formats{Format::nvfp4, Format::mxfp8, Format::bf16},
        Formats{Format::bf16, Format::fp8_block, Format::bf16}, Formats{Format::mxfp8, Format::bf16, Format::bf16},
        Formats{Format::fp8, Format::nvfp4, Format::bf16}})
    for (const bool zero : {false, true})
      comm::run_local(mesh.tp * mesh.gtp * mesh.dp, {}, [&](comm::World& world) {
        SCOPED_TRACE(fmt::format("{} and {}", name_of(formats.forward), name_of(formats.backward)));
        shard::ParallelGroups parallel = shard::make_parallel_groups(
            world, nn::rank_layout({.tp = mesh.tp, .gtp = mesh.gtp, .dp = mesh.dp}), /*with_casts=*/true);
        runtime::Runtime runtime(parallel, {.model = quant::DType::bf16},
                                 {.zero = zero,
                                  .gather_budget = schedule::kMinimum,
                                  .coalesce_bytes = zero ? 0 : 1 << 16,
                                  .replay = {.poison = true},
                                  .wire = {.format = formats.forward},
                                  .products = {.format = formats.product},
                                  .wire_backward = {{.format = formats.backward}}});
        for (shard::ParameterSpec& spec : specs(mesh.tp)) runtime.parameters().add(std::move(spec));
        runtime.parameters().add_backward_weights();
        ASSERT_EQ(runtime.parameters().size(), 2 * runtime.parameters().weights());
        WeightCast cast(runtime);
        for (int round = 0; round < 4; ++round) {  // first on demand, then by a schedule
          write_masters(runtime, round);
          for (const std::vector<schedule::ParameterId>& bucket : {std::vector{2, 0}, std::vector{3, 1}}) {
            cast.cast(bucket);
            runtime.program().publish(bucket);
          }
          for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id)
            EXPECT_EQ(runtime.parameter(id).version(), round + 1);
          check_both_passes(runtime, round);
        }
        EXPECT_NE(runtime.schedule(schedule::StepKind::train, 1), nullptr);
        EXPECT_EQ(runtime.statistics().demand_gathers, 0);
      });
}

INSTANTIATE_TEST_SUITE_P(Meshes, CastOnMesh,
                         ::testing::Values(CastMesh{1, 1, 1}, CastMesh{1, 3, 1}, CastMesh{2, 2, 1}, CastMesh{1, 2, 2},
                                           CastMesh{1, 8, 1}, CastMesh{2, 1, 3}),
                         [](const auto& info) {
                           return fmt::format("tp{}gtp{}dp{}", info.param.tp, info.param.gtp, info.param.dp);
                         });

}  // namespace
}  // namespace tessera::train
