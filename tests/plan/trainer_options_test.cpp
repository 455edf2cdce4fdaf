#include "tessera/settings/trainer_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plan/plan_testing.h"
#include "tests/settings/config_test_support.h"

namespace tessera::plan {
namespace {

// Returns the trainer's options for a command line.
train::TrainerOptions options_of(std::vector<std::string> flags) {
  flags.insert(flags.end(), {"--model", "m", "--data", "d", "--steps", "9", "--out", "o", "--seq-len", "4"});
  return settings::trainer_options(
      settings::resolve(settings::parse(flags), config_of(even_model()), settings::Use::train));
}

TEST(TrainerOptions, TakeTheOptimizerFromTheFlags) {
  const train::TrainerOptions options =
      options_of({"--beta1", "0.5", "--beta2", "0.75", "--eps", "0.125", "--weight-decay", "0.375", "--clip", "0.625"});
  ops::StepScalars got;
  const ops::UpdateRule& rule = *options.update->rules.front();
  ASSERT_EQ(rule.scalar_bytes(), sizeof got);
  rule.scalars({.lr = 0.25}, 7, reinterpret_cast<std::byte*>(&got));
  const ops::StepScalars expected =
      ops::step_scalars({.beta1 = 0.5, .beta2 = 0.75, .eps = 0.125, .weight_decay = 0.375}, 0.25, 7);
  EXPECT_EQ(std::memcmp(&got, &expected, sizeof got), 0);
  EXPECT_EQ(options.clip, 0.625);
}

TEST(TrainerOptions, TakeTheMeshAndTypesFromTheFlags) {
  const train::TrainerOptions options = options_of({"--tp", "2", "--gtp", "3", "--dp", "4", "--dtype", "bf16",
                                                    "--grad-wire", "fp32", "--sequence-parallel", "on", "--zero", "off",
                                                    "--reduce-order", "hierarchical", "--ranks-per-node", "4"});
  EXPECT_EQ(to_string(options.step.layout.mesh.grids().front()), "tp 2 x gtp 3 x dp 4");
  EXPECT_EQ(options.step.types.model, quant::DType::bf16);
  EXPECT_EQ(options.step.types.accumulator, quant::DType::fp32);
  EXPECT_EQ(options.step.types.wire, quant::DType::fp32);
  EXPECT_TRUE(options.step.sequence_parallel);
  EXPECT_FALSE(options.step.runtime.zero);
  EXPECT_EQ(options.step.runtime.nodes, std::vector<int>{2});
  EXPECT_TRUE(options_of({}).step.runtime.zero);
  EXPECT_EQ(options_of({"--dtype", "bf16"}).step.types.wire, quant::DType::bf16);
}

// The ranks of a node divided by the ranks that compute one part, at least 1, and at most the ranks of a replica.
TEST(TrainerOptions, NodesOfExpertsHaveTheirOwnNumberOfRanks) {
  settings::TrainConfig config;
  config.mesh.tp = 2, config.mesh.gtp = 8, config.mesh.etp = 2, config.mesh.ep = 4;
  EXPECT_EQ(settings::ranks_of_node(config, true), (std::vector<int>{1, 1}));
  config.reduce_order = settings::ReduceOrder::hierarchical;
  for (const auto& [ranks, dense, experts] : {std::tuple{2, 1, 1}, {8, 4, 1}, {12, 6, 1}, {16, 8, 2}, {32, 8, 2}}) {
    config.ranks_per_node = ranks;
    EXPECT_EQ(settings::ranks_of_node(config, true), (std::vector<int>{dense, experts})) << ranks;
  }
  EXPECT_EQ(settings::ranks_of_node(config, false), std::vector<int>{8});
}

TEST(TrainerOptions, TakeTheRuntimeFromTheFlags) {
  const train::TrainerOptions options =
      options_of({"--gather-budget", "3MB", "--reduce-budget", "min", "--coalesce", "5KiB", "--pushes", "off",
                  "--debug-poison", "on", "--debug-delays", "7"});
  EXPECT_EQ(options.step.runtime.gather_budget, 3'000'000);
  EXPECT_EQ(options.step.runtime.reduce_budget, schedule::kMinimum);
  EXPECT_EQ(options.step.runtime.coalesce_bytes, 5 * 1024);
  EXPECT_FALSE(options.step.runtime.pushes);
  EXPECT_TRUE(options.step.runtime.replay.poison);
  EXPECT_EQ(options.step.runtime.replay.delay_seed, 7u);
  EXPECT_EQ(options_of({}).step.runtime.coalesce_bytes, 1024 * 1024);
}

TEST(TrainerOptions, TakeFormatsFromTheFlags) {
  const train::TrainerOptions options =
      options_of({"--dtype", "bf16", "--wire-format", "mxfp8", "--wire-format-backward", "fp8", "--gemm-format", "fp8",
                  "--fp8-recipe", "e4m3", "--fp8-history", "5", "--fp8-amax", "newest", "--fp8-margin", "3"});
  EXPECT_EQ(options.step.runtime.wire.format, quant::Format::mxfp8);
  EXPECT_EQ(options.step.runtime.wire_backward->format, quant::Format::fp8);
  EXPECT_EQ(options.step.runtime.products.format, quant::Format::fp8);
  EXPECT_EQ(options.step.products.recipe, quant::Fp8Recipe::e4m3);
  EXPECT_EQ(options.step.products.scaling, nn::Fp8Scaling::delayed);
  EXPECT_EQ(options.step.products.history, 5);
  EXPECT_EQ(options.step.products.choice, quant::AmaxChoice::newest);
  EXPECT_EQ(options.step.products.margin, 3);
}

}  // namespace
}  // namespace tessera::plan
