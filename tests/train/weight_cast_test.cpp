// Checks that the ranks of a mesh, which cast from their parts of the masters, write the same bytes as a single rank
// with whole masters. Every rank reads the values of the quantized whole, in every format. On some meshes, shards begin
// inside tiles or ranks are empty.
#include "tessera/train/update/weight_cast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>
#include <ostream>
#include <random>
#include <tuple>
#include <utility>

#include "tessera/comm/local/world.h"
#include "tessera/layout/dense.h"
#include "tessera/models/decoder/decoder_layouts.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/quant/formats/decoded.h"
#include "tessera/shard/formats/encoded.h"
#include "tessera/shard/parameter_layouts.h"
#include "tests/runtime/elements.h"

namespace tessera::train {
namespace {

using quant::Format;

struct CastMesh {
  int tp, gtp, dp;
};

class CastOnMesh : public ::testing::TestWithParam<CastMesh> {};

// Returns element i of a parameter's master: large and small numbers, zeros, an infinity, a NaN. Matrices of a stack
// have magnitudes that differ by up to 10^6, and some of them are zero.
float master_value(const shard::ParameterSpec& spec, schedule::ParameterId id, int round, std::int64_t i) {
  const std::int64_t matrix = i / (spec.compute.shape.elements() / shard::matrices_of(spec));
  if (i % 97 == 5 || matrix % 5 == 3) return 0;
  if (id == 1 && i == 131) return INFINITY;
  if (id == 2 && i == 77) return NAN;
  const auto mixed = static_cast<std::uint32_t>((i * 2654435761 + id * 40503 + round * 977) & 0xFFFFFF);
  const auto magnitude = static_cast<float>(std::pow(1000.0, static_cast<double>(matrix % 3)));
  return magnitude * (static_cast<float>(mixed) * 0x1p-23F - 1) * std::exp2(static_cast<float>(i % 13) - 9);
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
  std::vector<float> amaxes;               // of whole matrices, by matrix of the part
  std::vector<quant::bfloat16> values;
};

// Returns the amax of one whole logical matrix.
float amax_of(const shard::ShardedParameter& parameter, schedule::ParameterId id, int round, std::int64_t matrix) {
  const std::int64_t elements = parameter.storage.shape.elements() / shard::matrices_of(parameter.spec);
  float amax = 0;
  for (std::int64_t i = matrix * elements; i < (matrix + 1) * elements; ++i) {
    const float value = master_value(parameter.spec, id, round, i);
    const float magnitude = std::fabs(static_cast<float>(quant::bfloat16(value)));
    if (magnitude > amax) amax = magnitude;
  }
  return amax;
}

// Quantizes one matrix of a part alone, with the amax of its logical matrix, and appends the result.
void append_matrix(const float* values, quant::Extent extent, const quant::Encoding& encoding, float tensor_amax,
                   bool is_decoded, ExpectedWeight& result) {
  const auto tiles = static_cast<std::size_t>(quant::scale_extent(encoding, extent).elements());
  std::vector<float> amaxes(tiles), multipliers(tiles), scales(tiles);
  const quant::Source source{.data = values, .type = quant::DType::fp32};
  const quant::Slice whole{.end = extent.elements()};
  take_amaxes(source, extent, encoding.tile, whole, amaxes);
  if (tiles == 1 && encoding.tile == quant::ScaleTile{}) amaxes[0] = tensor_amax;
  make_scales(encoding, amaxes, tensor_amax, multipliers, scales.data());
  std::vector<std::uint8_t> data(static_cast<std::size_t>(quant::data_bytes(encoding.element, extent.elements())));
  quant::cast(source, extent, encoding, whole, multipliers, data.data());
  std::vector<quant::bfloat16> decoded(static_cast<std::size_t>(extent.elements()));
  const quant::Quantized stored{.data = data.data(), .scales = scales.data(), .tensor_amax = &tensor_amax};
  if (is_decoded)
    decode(stored, extent, encoding, decoded.data());
  else
    dequantize(stored, extent, encoding, decoded.data());
  const auto* scale_bytes = reinterpret_cast<const std::uint8_t*>(scales.data());
  result.data.insert(result.data.end(), data.begin(), data.end());
  result.scales.insert(result.scales.end(), scale_bytes,
                       scale_bytes + tiles * quant::size_of(quant::scale_type(encoding.scale)));
  result.amaxes.push_back(tensor_amax);
  result.values.insert(result.values.end(), decoded.begin(), decoded.end());
}

// Returns the compute part of weight `id` in the number format of `parameter`, which is the weight or its
// backward_weight. Each matrix of the part is quantized alone.
ExpectedWeight expected_weight(const shard::ShardedParameter& parameter, schedule::ParameterId id, int round) {
  std::vector<float> values(static_cast<std::size_t>(parameter.local_compute.size));
  runtime::for_each_element(parameter.local_compute, parameter.storage.shape.cols,
                            [&](std::int64_t at, std::int64_t i) {
                              values[static_cast<std::size_t>(at)] = master_value(parameter.spec, id, round, i);
                            });
  ExpectedWeight result;
  if (!parameter.spec.encoding) {
    std::ranges::transform(values, std::back_inserter(result.values),
                           [](float value) { return quant::bfloat16(value); });
    return result;
  }
  const shard::Matrices part = shard::compute_matrices(parameter);
  const std::int64_t experts = shard::matrices_of(parameter.spec);
  for (std::int64_t matrix = 0; matrix < part.count; ++matrix) {
    const std::int64_t logical =
        experts == 1
            ? 0
            : shard::matrices_in(parameter.spec, parameter.local_compute)[static_cast<std::size_t>(matrix)].matrix;
    append_matrix(values.data() + matrix * part.matrix.elements(), part.matrix, *parameter.spec.encoding,
                  amax_of(parameter, id, round, logical), unpacked_to(parameter.spec) == shard::Unpacked::decoded,
                  result);
  }
  return result;
}

void write_masters(runtime::Runtime& runtime, int round) {
  for (schedule::ParameterId id = 0; id < runtime.parameters().weights(); ++id) {
    shard::ShardedParameter& parameter = runtime.parameter(id);
    auto* master = reinterpret_cast<float*>(parameter.state_master());
    runtime::for_each_element(
        parameter.local_state, parameter.storage.shape.cols,
        [&](std::int64_t at, std::int64_t i) { master[at] = master_value(parameter.spec, id, round, i); });
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
  const std::vector<shard::StateAmaxes> places = cast.places_of_amaxes(bucket);
  for (std::size_t i = 0; i < places.size(); ++i) {
    shard::ShardedParameter& parameter = runtime.parameter(bucket[i]);
    const auto* master = reinterpret_cast<const float*>(parameter.state_master());
    for (std::int64_t at = 0; at < parameter.state_elements(); ++at) {
      const shard::StateAmaxes& amaxes = places[i];
      const std::int64_t matrix = amaxes.elements == 0 ? 0 : (amaxes.offset + at) / amaxes.elements;
      quant::take_amaxes({master + at, quant::DType::fp32}, {.rows = 1, .cols = 1}, {}, {.end = 1},
                         {amaxes.first + matrix, 1});
    }
  }
  return !places.empty();
}

void check_weights(runtime::Runtime& runtime, int round) {
  runtime.program().begin_step(schedule::StepKind::evaluate, 1);
  runtime.program().begin_microbatch(0);
  for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id) {
    const runtime::WeightView view = runtime.program().consume(id, {0, schedule::Pass::forward});
    check_view(view, expected_weight(runtime.parameter(id), id, round), runtime.parameter(id).spec.name, round);
    runtime.program().release(id, {0, schedule::Pass::forward});
  }
  runtime.program().end_microbatch(0);
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
  runtime.program().begin_microbatch(0);
  for (const schedule::Pass pass : {schedule::Pass::forward, schedule::Pass::recompute, schedule::Pass::backward})
    for (schedule::ParameterId id = 0; id < runtime.parameters().weights(); ++id) {
      const schedule::ParameterId backward_weight = runtime.parameters().backward_weight(id);
      const bool reads_backward_weight = pass == schedule::Pass::backward && backward_weight != schedule::kNoParameter;
      const shard::ShardedParameter& read = runtime.parameter(reads_backward_weight ? backward_weight : id);
      const runtime::WeightView view = runtime.program().consume(id, {0, pass});
      ASSERT_FALSE(view.encoded.has_value());
      EXPECT_EQ(view.is_decoded, read.spec.product == Format::mxfp8);
      check_view(view, expected_weight(read, id, round), read.spec.name, round);
      runtime.program().release(id, {0, pass});
    }
  runtime.program().end_microbatch(0);
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

// A mesh of experts and the sizes of one layer's experts.
struct ExpertCase {
  int etp, ep, egtp, edp, dp;
  std::int64_t experts, width, hidden;
  Format format;
  bool zero;
};

std::ostream& operator<<(std::ostream& out, const ExpertCase& test) {
  return out << fmt::format("etp {} ep {} egtp {} edp {} dp {}, {} experts of {} x {}, {}, zero {}", test.etp, test.ep,
                            test.egtp, test.edp, test.dp, test.experts, test.width, test.hidden, name_of(test.format),
                            test.zero);
}

// Returns cases with at most 12 ranks. Some ranks own no expert, and some shards are empty.
std::vector<ExpertCase> random_experts(unsigned seed, int count) {
  std::mt19937 random(seed);
  const auto pick = [&](auto... values) { return std::array{values...}[random() % sizeof...(values)]; };
  std::vector<ExpertCase> cases;
  while (static_cast<int>(cases.size()) < count) {
    const auto [width, hidden] = pick(std::pair(52, 90), std::pair(56, 96), std::pair(2, 2), std::pair(200, 72));
    const ExpertCase test{.etp = pick(1, 2),
                          .ep = pick(1, 2, 3),
                          .egtp = pick(1, 2, 3, 4),
                          .edp = pick(1, 1, 2),
                          .dp = pick(1, 2),
                          .experts = pick(1, 7, 10),
                          .width = width,
                          .hidden = hidden,
                          .format = pick(Format::fp8, Format::fp8_block, Format::mxfp8, Format::nvfp4),
                          .zero = pick(false, true)};
    const bool is_odd = test.format == Format::nvfp4 && width / test.etp % 2 != 0;
    if (!is_odd && test.etp * test.ep * test.egtp * test.edp * test.dp <= 12) cases.push_back(test);
  }
  return cases;
}

// Compares the stored planes of a rank with the same rows of the whole part.
void check_stored(const shard::ShardedParameter& parameter, const ExpectedWeight& expected) {
  for (std::size_t p = 0; p < parameter.planes.size(); ++p) {
    const shard::Plane& plane = parameter.planes[p];
    if (plane.local_storage.size == 0) continue;
    const auto row = layout::local_row(plane.local_compute, plane.local_storage.pieces.front().box);
    ASSERT_TRUE(row);
    const std::vector<std::uint8_t>& whole = p == 0 ? expected.data : expected.scales;
    const std::int64_t first = plane.bytes(*row * plane.local_storage.pieces.front().stride);
    ASSERT_LE(static_cast<std::size_t>(first) + plane.data.size(), whole.size());
    EXPECT_EQ(std::memcmp(plane.data.data(), whole.data() + first, plane.data.size()), 0)
        << parameter.spec.name << ", plane " << plane.spec.name;
  }
  if (parameter.tensor_scale.size() == 0) return;
  const bool is_fp8 = parameter.planes.size() == 1;
  ASSERT_EQ(parameter.tensor_scale.size(), sizeof(float) * expected.amaxes.size());
  EXPECT_EQ(std::memcmp(parameter.tensor_scale.data(),
                        is_fp8 ? static_cast<const void*>(expected.scales.data()) : expected.amaxes.data(),
                        parameter.tensor_scale.size()),
            0)
      << parameter.spec.name;
}

class CastOfExperts : public ::testing::TestWithParam<ExpertCase> {};

TEST_P(CastOfExperts, GivesTheBytesOfEachExpertAlone) {
  const ExpertCase test = GetParam();
  models::DecoderConfig config;
  config.hidden_size = test.hidden;
  config.experts = models::ExpertsConfig{.count = test.experts, .width = test.width};
  const nn::MeshDegrees degrees{.tp = test.etp,
                                .gtp = test.ep * test.egtp * test.edp,
                                .dp = test.dp,
                                .experts = nn::ExpertDegrees{test.etp, test.ep, test.egtp}};
  comm::run_local(static_cast<int>(degrees.places()), {}, [&](comm::World& world) {
    shard::ParallelGroups parallel = shard::make_parallel_groups(world, nn::rank_layout(degrees), /*with_casts=*/true);
    runtime::Runtime runtime(parallel, {.model = quant::DType::bf16},
                             {.zero = test.zero,
                              .gather_budget = schedule::kMinimum,
                              .replay = {.poison = true},
                              .wire = {.format = test.format}});
    for (const auto& [name, dims, compute] :
         {std::tuple("gate_up", std::vector{test.experts, 2 * test.width, test.hidden},
                     models::experts_gate_up_layout(config, test.etp, test.ep)),
          std::tuple("down", std::vector{test.experts, test.hidden, test.width},
                     models::experts_down_layout(config, test.etp, test.ep))})
      runtime.parameters().add({.name = name, .dims = dims, .compute = compute, .domain = nn::kExpertDomain});
    WeightCast cast(runtime);
    const std::vector<schedule::ParameterId> bucket{1, 0};
    for (int round = 0; round < 2; ++round) {
      write_masters(runtime, round);
      const bool has_amaxes = round % 2 == 1 && take_amaxes_before(runtime, cast, bucket);
      cast.cast(bucket, has_amaxes);
      runtime.program().publish(bucket);
      check_weights(runtime, round);
      for (const schedule::ParameterId id : bucket)
        check_stored(runtime.parameter(id), expected_weight(runtime.parameter(id), id, round));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Random, CastOfExperts, ::testing::ValuesIn(random_experts(74, 40)));

INSTANTIATE_TEST_SUITE_P(Meshes, CastOnMesh,
                         ::testing::Values(CastMesh{1, 1, 1}, CastMesh{1, 3, 1}, CastMesh{2, 2, 1}, CastMesh{1, 2, 2},
                                           CastMesh{1, 8, 1}, CastMesh{2, 1, 3}),
                         [](const auto& info) {
                           return fmt::format("tp{}gtp{}dp{}", info.param.tp, info.param.gtp, info.param.dp);
                         });

}  // namespace
}  // namespace tessera::train
