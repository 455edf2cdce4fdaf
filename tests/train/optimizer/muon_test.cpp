// Runs whose matrices are updated by Muon. The bits do not depend on the ranks that store and compute the matrices.
#include "tessera/ops/optimizer/matrices/muon.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/models/decoder/decoder_parameters.h"
#include "tessera/train/trainer_checkpoint.h"
#include "tests/base/files.h"
#include "tests/train/compare_runs.h"
#include "tests/train/training.h"

namespace tessera::train::muon_runs {
namespace {

using quant::DType, quant::Format;
using testing::expect_same_bits;
using testing::run;
using testing::RunOptions;
using testing::RunResult;

// Muon for the matrices between embedding and output layer, AdamW for the other parameters.
std::shared_ptr<const ops::UpdatePolicy> muon(const models::DecoderConfig& model, bool has_bf16_moments = false) {
  ops::UpdatePolicy policy;
  policy.rules.push_back(ops::make_rule({.weight_decay = 0.1, .has_bf16_moments = has_bf16_moments}));
  policy.rules.push_back(ops::make_matrix_rule(ops::Muon{.weight_decay = 0.1, .has_bf16_momentum = has_bf16_moments}));
  for (const shard::ParameterSpec& spec : decoder_parameters(model, {.tp_size = 1}))
    if (spec.is_hidden_matrix) policy.parameters[spec.name].rule = 1;
  return std::make_shared<const ops::UpdatePolicy>(std::move(policy));
}

RunOptions options_of(DType dtype, int tp = 1, int gtp = 1, int dp = 1, bool has_bf16_moments = false) {
  const models::DecoderConfig model = testing::odd_model();
  return {.model = model,
          .tp = tp,
          .gtp = gtp,
          .dp = dp,
          .dtype = dtype,
          .steps = 4,
          .update = muon(model, has_bf16_moments)};
}

RunOptions expert_options(int tp, int gtp, int dp, nn::ExpertDegrees degrees, bool zero = false) {
  RunOptions options = options_of(DType::bf16, tp, gtp, dp);
  options.model = testing::balanced_model();
  options.update = muon(options.model);
  options.experts = degrees;
  options.zero = zero;
  options.steps = 3;
  return options;
}

TEST(MuonRuns, HaveEqualBitsOnEveryMesh) {
  for (const DType dtype : {DType::fp32, DType::bf16})
    for (const bool has_bf16_moments : {false, true}) {
      const auto options = [&](int tp, int gtp, int dp) { return options_of(dtype, tp, gtp, dp, has_bf16_moments); };
      const RunResult expected = run(options(1, 1, 1));
      EXPECT_TRUE(expected.tensors.contains("momentum/layers.0.mlp.down.weight"));
      EXPECT_FALSE(expected.tensors.contains("momentum/embedding.weight"));
      for (const int gtp : {2, 3, 4}) expect_same_bits(expected, run(options(1, gtp, 1)), fmt::format("gtp {}", gtp));
      const RunResult replicas = run(options(1, 1, 2));
      for (const bool zero : {true, false}) {
        RunOptions both = options(1, 2, 2);
        both.zero = zero;
        expect_same_bits(replicas, run(both), fmt::format("ZeRO-1 {}", zero));
      }
      expect_same_bits(run(options(2, 1, 1)), run(options(2, 3, 1)), "tp 2, gtp 3");
    }
}

TEST(MuonRuns, HaveEqualBitsFor20StepsWithDelays) {
  RunOptions options = options_of(DType::bf16);
  options.steps = 20;
  const RunResult expected = run(options);
  options.gtp = 3;
  options.least_memory = true;
  options.replay = {.poison = true, .delay_seed = 5U, .longest_delay = 0.0003};
  expect_same_bits(expected, run(options), "the least memory");
}

TEST(MuonRuns, HaveEqualBitsForExpertsAndNumberFormats) {
  expect_same_bits(run(expert_options(1, 2, 1, {1, 2, 1})), run(expert_options(1, 4, 1, {1, 2, 2})), "ep 2, egtp 2");
  expect_same_bits(run(expert_options(1, 4, 1, {1, 1, 4})), run(expert_options(1, 4, 1, {1, 1, 1})), "edp 4");
  expect_same_bits(run(expert_options(1, 2, 2, {1, 1, 1})), run(expert_options(1, 2, 2, {1, 1, 2}, true)), "ZeRO-1");
  for (const Format wire : {Format::fp8, Format::mxfp8}) {
    RunOptions one = expert_options(1, 2, 1, {1, 2, 1}), four = expert_options(1, 4, 1, {1, 2, 2});
    one.wire = four.wire = wire;
    expect_same_bits(run(one), run(four), std::string(name_of(wire)));
  }
}

TEST(MuonRuns, RepeatedAndSkippedStepsChangeNoState) {
  RunOptions options = options_of(DType::bf16, 1, 2, 1, /*has_bf16_moments=*/true);
  const RunResult expected = run(options);
  options.suppressed = {{1, 2}, {3, 1}};
  EXPECT_EQ(run(options).tensors, expected.tensors);
  RunOptions skipped = options_of(DType::bf16, 1, 2), one = options_of(DType::bf16);
  skipped.spoiled = one.spoiled = {1};
  EXPECT_EQ(run(skipped).tensors, run(one).tensors);
}

TEST(MuonRuns, ContinueFromACheckpointOnAnotherMesh) {
  const base::TempFolder root;
  const std::filesystem::path folder = root / "checkpoint";
  RunOptions writer = options_of(DType::bf16, 1, 2);
  const RunResult whole = run(writer);
  writer.steps = 2;
  writer.at_end = [&](Trainer& trainer) { save_trainer(trainer, folder, 2, nlohmann::json::object()); };
  run(writer);
  RunOptions reader = options_of(DType::bf16, 1, 3);
  reader.left_out = {0, 1};
  reader.before_step = [&](Trainer& trainer, int step) {
    if (step == 2) load_trainer(trainer, checkpoint::CheckpointReader(folder));
  };
  EXPECT_EQ(run(reader).tensors, whole.tensors);
}

// Losses, tensors and checkpoints of split masters have the bits of fp32 masters.
TEST(MuonRuns, HaveTheBitsOfWholeMastersWithSplitMasters) {
  const base::TempFolder root;
  const auto compare = [&](RunOptions options, const std::string& what) {
    const auto run_with = [&](bool is_split) {
      options.split_masters = is_split;
      options.at_end = [&, is_split](Trainer& trainer) {
        save_trainer(trainer, root / (is_split ? "split " + what : what), options.steps, nlohmann::json::object());
      };
      return run(options);
    };
    expect_same_bits(run_with(false), run_with(true), what);
    const checkpoint::CheckpointReader whole(root / what), split(root / ("split " + what));
    ASSERT_EQ(split.manifest().tensors.size(), whole.manifest().tensors.size());
    for (const checkpoint::StoredTensor& tensor : whole.manifest().tensors)
      EXPECT_EQ(split.hash(split.tensor(tensor.name, tensor.kind)), whole.hash(tensor)) << tensor.name << " " << what;
  };
  for (const bool has_bf16_moments : {false, true}) {
    const std::string moments = has_bf16_moments ? " bf16 moments" : " fp32 moments";
    compare(options_of(DType::bf16, 1, 1, 1, has_bf16_moments), "one rank" + moments);
    compare(options_of(DType::bf16, 1, 3, 1, has_bf16_moments), "gtp 3" + moments);
    RunOptions replicas = options_of(DType::bf16, 2, 1, 2, has_bf16_moments);
    replicas.zero = true;
    replicas.suppressed = {{1, 1}};
    compare(replicas, "ZeRO-1" + moments);
  }
  compare(expert_options(1, 4, 1, {1, 2, 2}), "experts");
}

// The state of AdamW is no momentum, so the momentum starts at zero.
TEST(MuonRuns, StartWithoutMomentumFromACheckpointOfAdamW) {
  const base::TempFolder root;
  const std::filesystem::path folder = root / "checkpoint";
  RunOptions writer = options_of(DType::fp32);
  writer.update = nullptr;
  writer.steps = 2;
  writer.at_end = [&](Trainer& trainer) { save_trainer(trainer, folder, 2, nlohmann::json::object()); };
  const RunResult stored = run(writer);
  RunOptions reader = options_of(DType::fp32, 1, 2);
  reader.left_out = {0, 1};
  reader.steps = 2;
  reader.at_end = [&](Trainer& trainer) { load_trainer(trainer, checkpoint::CheckpointReader(folder)); };
  const RunResult read = run(reader);
  for (const auto& [name, values] : read.tensors) {
    if (name.starts_with("momentum/")) {
      EXPECT_TRUE(std::ranges::all_of(values, [](double value) { return value == 0; })) << name;
    } else if (name.starts_with("weight/") || name == "exp_avg/embedding.weight") {
      EXPECT_EQ(values, stored.tensors.at(name)) << name;
    }
  }
}

// Ranks that have adopted parts of an unused place store pieces whose rows are apart.
TEST(MuonRuns, HaveEqualBitsWithUnusedPlaces) {
  const mesh::Grid grid{{"tp", 2}, {"gtp", 1}, {"dp", 2}};
  for (const bool has_bf16_moments : {false, true}) {
    RunOptions options = options_of(DType::bf16, 2, 1, 2, has_bf16_moments);
    options.ranks =
        shard::RankLayout{.mesh = mesh::Mesh({grid}, mesh::live_places(grid, {1})),
                          .domains = {{.compute = {"tp"}, .storage = {"gtp"}, .duplicates = {}, .replicas = {"dp"}}}};
    const RunResult expected = run(options);
    options.zero = true;
    expect_same_bits(expected, run(options), "ZeRO-1");
  }
}

// A trainer with a rule of matrices for a vector is refused.
TEST(MuonRuns, RefuseParametersWithoutMatrices) {
  ops::UpdatePolicy policy = *muon(testing::odd_model());
  policy.parameters["norm.weight"].rule = 1;
  RunOptions options = options_of(DType::fp32);
  options.update = std::make_shared<const ops::UpdatePolicy>(std::move(policy));
  EXPECT_THROW(run(options), Error);
}

}  // namespace
}  // namespace tessera::train::muon_runs
