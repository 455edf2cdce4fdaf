// Runs with split masters (ops/optimizer/split_master.h) have the bits of runs with fp32 masters: losses, norms,
// weights, masters, moments and checkpoints.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <filesystem>

#include "tessera/comm/local/world.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/ops/optimizer/matrices/muon.h"
#include "tessera/ops/optimizer/split_master.h"
#include "tessera/train/trainer_checkpoint.h"
#include "tessera/train/update/master_values.h"
#include "tests/base/files.h"
#include "tests/train/compare_runs.h"
#include "tests/train/momentum_sgd.h"
#include "tests/train/training.h"

namespace tessera::train::split_masters {
namespace {

using quant::DType, quant::Format;
using testing::expect_same_bits;
using testing::run;
using testing::RunOptions;
using testing::RunResult;

constexpr double kDecay = 0.1;

RunOptions options_of(int tp = 1, int gtp = 1, int dp = 1) {
  return {.model = testing::odd_model(),
          .tp = tp,
          .gtp = gtp,
          .dp = dp,
          .dtype = DType::bf16,
          .steps = 5,
          .rule = ops::make_rule({.weight_decay = kDecay})};
}

// Runs with fp32 masters and with split masters, and returns the result.
RunResult both(RunOptions options, const std::string& what) {
  const auto check_memory = [](Trainer& trainer) {
    for (schedule::ParameterId id = 0; id < trainer.runtime().parameters().weights(); ++id) {
      const shard::ShardedParameter& parameter = trainer.runtime().parameter(id);
      const bool is_one_plane = !parameter.spec.encoding && !parameter.spec.backward && !parameter.spec.is_wide;
      EXPECT_EQ(parameter.has_split_master, is_one_plane) << parameter.spec.name;
      const std::int64_t bytes = is_one_plane ? 2 : parameter.has_master() ? 4 : 0;
      EXPECT_EQ(static_cast<std::int64_t>(parameter.master.size()), bytes * parameter.state_elements());
    }
  };
  RunResult whole = run(options);
  options.split_masters = true;
  options.at_end = check_memory;
  expect_same_bits(whole, run(options), what);
  return whole;
}

TEST(SplitMasters, HaveTheBitsOfWholeMastersOnEveryMesh) {
  const RunResult one = both(options_of(), "one rank");
  for (const int gtp : {2, 3, 4}) expect_same_bits(one, both(options_of(1, gtp), fmt::format("gtp {}", gtp)), "gtp");
  both(options_of(3), "tp 3");
  expect_same_bits(both(options_of(2), "tp 2"), both(options_of(2, 3), "tp 2, gtp 3"), "gtp");
  for (const bool zero : {false, true}) {
    RunOptions options = options_of(1, 2, 2);
    options.zero = zero;
    options.replay = {.poison = true, .delay_seed = 5U, .longest_delay = 0.0003};
    both(options, fmt::format("dp 2, ZeRO-1 {}", zero));
    options.least_memory = true;
    options.model.tie_word_embeddings = true;
    both(options, fmt::format("tied, least memory, ZeRO-1 {}", zero));
  }
  RunOptions rows = options_of(1, 3, 2);
  rows.zero = true;
  rows.embedding = shard::Lookup::rows;
  both(rows, "rows of the embedding");
}

TEST(SplitMasters, HaveTheBitsOfWholeMastersForExperts) {
  const auto options = [&](int gtp, int ep, int egtp, int dp) {
    RunOptions result = options_of(1, gtp, dp);
    result.model = testing::sparse_model();
    result.experts = nn::ExpertDegrees{.etp = 1, .ep = ep, .egtp = egtp};
    result.zero = dp > 1;
    result.steps = 3;
    return result;
  };
  both(options(2, 2, 1, 1), "ep 2");
  both(options(4, 2, 2, 1), "ep 2, egtp 2");
  both(options(4, 2, 1, 2), "ep 2, edp 2, dp 2");
  RunOptions balanced = options(2, 2, 1, 1);
  balanced.model = testing::balanced_model();
  balanced.expert_bias_rate = 0.01;
  both(balanced, "routers with a bias");
}

TEST(SplitMasters, HaveTheBitsOfWholeMastersOnMeshesWithDeadPlaces) {
  RunOptions options = options_of();
  options.ranks = nn::rank_layout({.tp = 2, .gtp = 2, .dp = 2, .unused = {1}});
  options.zero = true;
  both(options, "a dead slot");
}

// Products in nvfp4 read equal weights, whether their masters are split, whole beside bf16, or whole beside codes.
TEST(SplitMasters, WireFormatsDoNotChangeTheBits) {
  RunOptions options = options_of(1, 2);
  options.model.hidden_size = 32, options.model.intermediate_size = 48;
  options.model.num_heads = 8, options.model.num_kv_heads = 4, options.model.head_dim = 4;
  options.products = Format::nvfp4;
  options.steps = 8;
  const RunResult narrow = both(options, "bf16 wire");
  for (const Format format : {Format::nvfp4, Format::fp8, Format::mxfp8}) {
    options.wire = format;
    if (format != Format::nvfp4) options.products = format;
    both(options, fmt::format("{} wire", name_of(format)));
    options.wire_backward = Format::bf16;
    both(options, fmt::format("{} wire, bf16 in backward passes", name_of(format)));
    options.wire_backward.reset();
  }
  options.products = options.wire = Format::nvfp4;
  const RunResult wide = run(options);
  EXPECT_EQ(wide.losses, narrow.losses);
  EXPECT_EQ(wide.norms, narrow.norms);
  for (const auto& [name, values] : wide.tensors) {
    const bool is_coded = name.starts_with("weight/") && !wide.tensors.contains("master/" + name.substr(7));
    const std::string master = "master/" + name.substr(7);
    EXPECT_EQ(values, narrow.tensors.at(is_coded && narrow.tensors.contains(master) ? master : name)) << name;
  }
}

// Sets the rows of the embedding so that decay alone makes their elements ties. The update of a row that no token reads
// is decay alone.
void place_before_ties(Trainer& trainer, double lr) {
  const auto decay = static_cast<float>(1 - lr * kDecay);
  testing::set_elements(trainer, "embedding.weight", [&](std::int64_t row, std::int64_t col, float old) {
    if (row % 2 == 0) return old;
    const std::uint32_t high = 0x3F80 + 2 * static_cast<std::uint32_t>((row * 5 + col) % 60);
    return std::bit_cast<float>(high << 16 | 0x8000) / decay;
  });
}

std::int64_t rounded_ties(Trainer& trainer) {
  std::int64_t count = 0;
  testing::set_elements(trainer, "embedding.weight", [&](std::int64_t, std::int64_t, float old) {
    if ((std::bit_cast<std::uint32_t>(old) & 0x1FFFF) == 0x7FFF) ++count;
    return old;
  });
  return count;
}

TEST(SplitMasters, HaveTheBitsOfWholeMastersOver200StepsWithTies) {
  std::atomic<std::int64_t> ties = 0;
  RunOptions options = options_of(1, 2);
  options.steps = 200;
  options.blocks = 2;
  options.before_step = [](Trainer& trainer, int step) {
    if (step % 10 == 3) place_before_ties(trainer, 1e-2);
  };
  options.after_step = [&](Trainer& trainer, int step) {
    if (step % 10 == 3) ties += rounded_ties(trainer);
  };
  both(options, "200 steps");
  EXPECT_GT(ties, 200);
}

TEST(SplitMasters, KeepTheirBytesInStepsThatDoNotCount) {
  RunOptions options = options_of(1, 2, 2);
  options.zero = true;
  options.suppressed = {{1, 2}, {3, 1}};
  options.spoiled = {2};
  const RunResult result = both(options, "suppressed and skipped steps");
  EXPECT_EQ(result.skipped, (std::vector<bool>{false, false, true, false, false}));
}

TEST(SplitMasters, AreUpdatedByEveryRule) {
  RunOptions options = options_of(1, 2);
  options.rule = testing::momentum_sgd(0.9, kDecay);
  options.clip = 0;
  both(options, "momentum SGD");
  options.rule = ops::make_rule({.weight_decay = kDecay, .has_bf16_moments = true});
  const RunResult result = both(options, "moments in bf16");
  options.gtp = 3;
  expect_same_bits(result, both(options, "moments in bf16, gtp 3"), "gtp 3");
  ops::UpdatePolicy policy = *ops::one_rule(options.rule);
  policy.rules.push_back(ops::make_matrix_rule(ops::Muon{.weight_decay = kDecay}));
  for (const char* name : {"layers.0.attention.qkv.weight", "layers.1.mlp.down.weight"})
    policy.parameters[name] = {.rule = 1, .group = {.lr_factor = 0.5}};
  options.update = std::make_shared<const ops::UpdatePolicy>(std::move(policy));
  both(options, "Muon");
}

// A checkpoint of either storage continues with the same bits on another mesh, with either storage.
TEST(SplitMasters, ContinueFromACheckpointOfEitherStorage) {
  const base::TempFolder root;
  for (const Format wire : {Format::bf16, Format::fp8}) {
    RunOptions options = options_of(1, 2);
    options.wire = wire;
    const RunResult whole = run(options);
    for (const bool is_split : {false, true}) {
      const std::filesystem::path folder = root / fmt::format("{} {}", name_of(wire), is_split);
      RunOptions writer = options;
      writer.split_masters = is_split;
      writer.steps = 3;
      writer.at_end = [&](Trainer& trainer) { save_trainer(trainer, folder, 3, nlohmann::json::object()); };
      run(writer);
      for (const bool reads_split : {false, true}) {
        RunOptions reader = options_of(1, 3);
        reader.wire = wire;
        reader.split_masters = reads_split;
        reader.left_out = {0, 1, 2};
        reader.before_step = [&](Trainer& trainer, int step) {
          if (step == 3) load_trainer(trainer, checkpoint::CheckpointReader(folder));
        };
        EXPECT_EQ(run(reader).tensors, whole.tensors) << is_split << " to " << reads_split;
      }
    }
    const checkpoint::CheckpointReader a(root / fmt::format("{} false", name_of(wire))),
        b(root / fmt::format("{} true", name_of(wire)));
    for (const checkpoint::StoredTensor& tensor : a.manifest().tensors)
      EXPECT_EQ(b.hash(b.tensor(tensor.name, tensor.kind)), a.hash(tensor)) << tensor.name;
    EXPECT_EQ(a.manifest().tensors.size(), b.manifest().tensors.size());
  }
}

// ---- the rule of ties, wherever masters come from

constexpr float kTie = 1 + 0x1p-8F;

TEST(MasterValues, InitialValuesFollowTheRuleOfTies) {
  for (const Format wire : {Format::bf16, Format::fp8, Format::nvfp4})
    for (const int ranks : {1, 2})
      comm::run_local(ranks, {}, [&](comm::World& world) {
        shard::ParallelGroups parallel =
            shard::make_parallel_groups(world, nn::rank_layout({.gtp = world.size()}), /*with_casts=*/true);
        runtime::Runtime runtime(parallel, {.model = DType::bf16},
                                 {.split_masters = world.size() == 2, .wire = {.format = wire}});
        const layout::Layout compute = layout::replicated({64, 32}, 1);
        for (const bool is_wide : {false, true})
          runtime.parameters().add({.name = is_wide ? "wide" : "narrow",
                                    .dims = {64, 32},
                                    .compute = compute,
                                    .initial_deviation = 0,
                                    .initial_value = kTie,
                                    .is_wide = is_wide,
                                    .takes_formats = !is_wide});
        set_initial_values(runtime, 1);
        for (const schedule::ParameterId id : {0, 1}) {
          MasterValues masters(runtime.parameter(id), parallel);
          const float expected = id == 0 ? ops::representable(kTie) : kTie;
          const auto* values = reinterpret_cast<const float*>(masters.data());
          for (std::int64_t i = 0; i < runtime.parameter(id).state_elements(); ++i)
            ASSERT_EQ(values[i], expected) << id;
        }
      });
}

TEST(MasterValues, LoadedMastersFollowTheRuleOfTies) {
  for (const Format wire : {Format::bf16, Format::nvfp4}) {
    testing::RunOptions options{
        .model = testing::odd_model(), .gtp = 2, .dtype = DType::bf16, .steps = 0, .wire = wire};
    options.model.hidden_size = 32, options.model.intermediate_size = 48, options.model.head_dim = 4;
    options.model.num_heads = 8, options.model.num_kv_heads = 4;
    options.split_masters = wire == Format::bf16;
    options.at_end = [&](Trainer& trainer) {
      load_tensors(trainer, {.has_masters = true, .read = [](const auto& request, bool) {
                               const auto count = static_cast<std::size_t>(request.local.size);
                               if (request.dtype == DType::fp32)
                                 std::fill_n(static_cast<float*>(request.data), count, kTie);
                               else
                                 std::fill_n(static_cast<quant::bfloat16*>(request.data), count, quant::bfloat16(kTie));
                             }});
      for (schedule::ParameterId id = 0; id < trainer.runtime().parameters().weights(); ++id) {
        shard::ShardedParameter& parameter = trainer.runtime().parameter(id);
        MasterValues masters(parameter, trainer.parallel());
        const auto* values = reinterpret_cast<const float*>(masters.data());
        for (std::int64_t i = 0; i < parameter.state_elements(); ++i)
          ASSERT_EQ(values[i], ops::representable(kTie)) << parameter.spec.name;
      }
    };
    run(options);
  }
}

}  // namespace
}  // namespace tessera::train::split_masters
