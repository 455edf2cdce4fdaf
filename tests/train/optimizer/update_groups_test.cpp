// Runs whose parameters have different learning rates and weight decays, and runs with several update rules. The bits
// do not depend on the mesh.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/train/trainer_checkpoint.h"
#include "tests/base/files.h"
#include "tests/train/compare_runs.h"
#include "tests/train/momentum_sgd.h"
#include "tests/train/training.h"

namespace tessera::train::update_groups {
namespace {

using quant::DType;
using testing::expect_same_bits;
using testing::run;
using testing::RunOptions;
using testing::RunResult;

const std::vector<std::pair<const char*, ops::UpdateGroup>> kGroups{
    {"embedding.weight", {.lr_factor = 0}},
    {"norm.weight", {.decay = 0.7}},
    {"layers.0.attention.qkv.weight", {.lr_factor = 0.5}},
    {"layers.0.mlp.down.weight", {.lr_factor = 2, .decay = 0}},
    {"layers.1.mlp.gate_up.weight", {.decay = 0.3}},
};

// AdamW, with groups.
std::shared_ptr<const ops::UpdatePolicy> groups() {
  ops::UpdatePolicy policy;
  policy.rules.push_back(ops::make_rule({.weight_decay = 0.1}));
  for (const auto& [name, group] : kGroups) policy.parameters[name] = {.group = group};
  return std::make_shared<const ops::UpdatePolicy>(std::move(policy));
}

RunOptions options_of(std::shared_ptr<const ops::UpdatePolicy> update, DType dtype, int tp = 1, int gtp = 1,
                      int dp = 1) {
  return {.model = testing::odd_model(),
          .tp = tp,
          .gtp = gtp,
          .dp = dp,
          .dtype = dtype,
          .steps = 5,
          .update = std::move(update)};
}

void expect_equal_bits_on_every_mesh(const std::shared_ptr<const ops::UpdatePolicy>& update, DType dtype) {
  const RunResult expected = run(options_of(update, dtype));
  EXPECT_NE(run(options_of(nullptr, dtype)).tensors, expected.tensors);
  for (const int gtp : {2, 3, 4})
    expect_same_bits(expected, run(options_of(update, dtype, 1, gtp)), fmt::format("gtp {}", gtp));
  RunOptions least = options_of(update, dtype, 1, 3);
  least.least_memory = true;
  least.replay = {.poison = true, .delay_seed = 5U, .longest_delay = 0.0003};
  expect_same_bits(expected, run(least), "the least memory");
  const RunResult replicas = run(options_of(update, dtype, 1, 1, 2));
  for (const bool zero : {true, false}) {
    RunOptions options = options_of(update, dtype, 1, 2, 2);
    options.zero = zero;
    expect_same_bits(replicas, run(options), fmt::format("ZeRO-1 {}", zero));
  }
  expect_same_bits(run(options_of(update, dtype, 2)), run(options_of(update, dtype, 2, 3)), "tp 2, gtp 3");
  RunOptions repeated = options_of(update, dtype, 1, 2);
  repeated.suppressed = {{1, 2}, {3, 1}};
  EXPECT_EQ(run(repeated).tensors, expected.tensors);
}

void expect_equal_bits_after_a_resume(const std::shared_ptr<const ops::UpdatePolicy>& update, DType dtype) {
  const base::TempFolder root;
  const std::filesystem::path folder = root / "checkpoint";
  const RunResult whole = run(options_of(update, dtype));
  RunOptions first = options_of(update, dtype, 1, 2);
  first.steps = 3;
  first.at_end = [&](Trainer& trainer) { save_trainer(trainer, folder, 3, nlohmann::json::object()); };
  run(first);
  RunOptions second = options_of(update, dtype, 1, 3);
  second.left_out = {0, 1, 2};
  second.before_step = [&](Trainer& trainer, int step) {
    if (step == 3) load_trainer(trainer, checkpoint::CheckpointReader(folder));
  };
  EXPECT_EQ(run(second).tensors, whole.tensors);
}

TEST(GroupsOfRuns, HaveEqualBitsOnEveryMesh) {
  expect_equal_bits_on_every_mesh(groups(), DType::bf16);
  expect_equal_bits_after_a_resume(groups(), DType::fp32);
}

// A parameter whose rate has the factor 0 keeps its values, and its moments follow its gradients.
TEST(GroupsOfRuns, KeepTheValuesOfARateOfZero) {
  RunOptions options = options_of(groups(), DType::fp32);
  options.steps = 1;
  const RunResult one = run(options);
  options.steps = 4;
  const RunResult four = run(options);
  const auto changes = [&](const std::string& name) { return one.tensors.at(name) != four.tensors.at(name); };
  EXPECT_FALSE(changes("weight/embedding.weight"));
  EXPECT_TRUE(changes("exp_avg/embedding.weight"));
  EXPECT_TRUE(changes("weight/norm.weight"));
}

// A group with the rate and the decay that its parameters have anyway changes no bit.
TEST(GroupsOfRuns, ChangeNoBitWithTheirOwnRatesAndDecays) {
  for (const DType dtype : {DType::fp32, DType::bf16}) {
    ops::UpdatePolicy policy;
    policy.rules.push_back(ops::make_rule({.weight_decay = 0.1}));
    for (const auto& [name, group] : kGroups)
      policy.parameters[name] = {.group = {.decay = std::string_view(name) == "norm.weight" ? 0 : 0.1}};
    const auto same = std::make_shared<const ops::UpdatePolicy>(policy);
    expect_same_bits(run(options_of(nullptr, dtype)), run(options_of(same, dtype)), "groups");
  }
}

// AdamW, and momentum SGD for three matrices.
const std::vector<const char*> kOfMomentum{"embedding.weight", "layers.0.mlp.down.weight",
                                           "layers.1.attention.qkv.weight"};
std::shared_ptr<const ops::UpdatePolicy> two_rules() {
  ops::UpdatePolicy policy;
  policy.rules = {ops::make_rule({.weight_decay = 0.1, .has_bf16_moments = true}), testing::momentum_sgd()};
  for (const char* name : kOfMomentum) policy.parameters[name] = {.rule = 1};
  policy.parameters[kOfMomentum.front()].group.lr_factor = 0.5;
  return std::make_shared<const ops::UpdatePolicy>(std::move(policy));
}

TEST(RulesOfRuns, HaveEqualBitsOnEveryMesh) {
  expect_equal_bits_on_every_mesh(two_rules(), DType::bf16);
  expect_equal_bits_after_a_resume(two_rules(), DType::bf16);
}

// The first step has the same gradients under every rule.
TEST(RulesOfRuns, EachUpdateTheirParameters) {
  ops::UpdatePolicy policy;
  policy.rules = {ops::make_rule({.weight_decay = 0.1}), testing::momentum_sgd()};
  for (const char* name : kOfMomentum) policy.parameters[name] = {.rule = 1};
  std::vector<RunResult> alone;
  for (const auto& rule : policy.rules) {
    alone.push_back(run([&] {
      RunOptions options = options_of(ops::one_rule(rule), DType::fp32);
      options.steps = 1;
      return options;
    }()));
  }
  RunOptions options = options_of(std::make_shared<const ops::UpdatePolicy>(policy), DType::fp32, 1, 2);
  options.steps = 1;
  const RunResult both = run(options);
  for (const auto& [name, values] : both.tensors) {
    const std::string parameter = name.substr(name.find('/') + 1);
    const bool has_momentum = std::ranges::find(kOfMomentum, parameter) != kOfMomentum.end();
    EXPECT_EQ(values, alone[has_momentum ? 1 : 0].tensors.at(name)) << name;
    EXPECT_EQ(both.tensors.contains("momentum/" + parameter), has_momentum) << name;
    EXPECT_EQ(both.tensors.contains("exp_avg/" + parameter), !has_momentum) << name;
  }
}

// A run of AdamW continues with two rules. The state of the second rule starts at zero.
TEST(RulesOfRuns, StartAtZeroAfterAnotherRule) {
  const base::TempFolder root;
  const std::filesystem::path folder = root / "checkpoint";
  RunOptions first = options_of(nullptr, DType::bf16, 1, 2);
  first.at_end = [&](Trainer& trainer) { save_trainer(trainer, folder, 5, nlohmann::json::object()); };
  run(first);
  const checkpoint::CheckpointReader reader(folder);
  const std::vector<std::string> notes = notes_of_state(reader, *two_rules());
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes.front().find("the state of momentum_sgd starts at zero for 3 parameters, such as embedding.weight"),
            std::string::npos)
      << notes.front();
  EXPECT_TRUE(notes_of_state(reader, *ops::one_rule(ops::make_rule({}))).empty());
  RunOptions second = options_of(two_rules(), DType::bf16, 1, 3);
  second.steps = 6;
  second.left_out = {0, 1, 2, 3, 4};
  second.before_step = [&](Trainer& trainer, int) {
    load_trainer(trainer, checkpoint::CheckpointReader(folder));
    EXPECT_EQ(trainer.optimizer().updates(), 5);
    for (schedule::ParameterId id = 0; id < trainer.runtime().parameters().weights(); ++id)
      trainer.optimizer().for_each_plane(id, [&](const ops::StatePlane& plane, base::Buffer& buffer) {
        const auto values = buffer.as<quant::bfloat16>();
        const bool is_zero = std::ranges::all_of(values, [](quant::bfloat16 value) { return value.bits == 0; });
        EXPECT_EQ(is_zero, plane.name == "momentum" || values.empty()) << trainer.runtime().parameter(id).spec.name;
      });
  };
  EXPECT_EQ(run(second).updates, 6);
}

}  // namespace
}  // namespace tessera::train::update_groups
