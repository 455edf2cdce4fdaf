// Compares `tessera inspect layout` with the buffers that a trainer allocates.
#include "tessera/plan/inspect_layout.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <mutex>

#include "tessera/comm/local/world.h"
#include "tessera/models/registry.h"
#include "tessera/plan/step_plan.h"
#include "tessera/settings/trainer_options.h"
#include "tessera/train/trainer.h"
#include "tests/plan/plan_testing.h"
#include "tests/plan/planned_run.h"
#include "tests/train/momentum_sgd.h"

namespace tessera::plan {
namespace {

using Words = std::map<std::string, std::string>;

// Bytes; the keys are the parameter name and the rank.
using Counted = std::map<std::string, std::vector<std::int64_t>>;
struct CountedBytes {
  Counted storage, compute, state;
};

models::DecoderConfig odd_model() {
  return models::decoder_of(*models::read_model_config(configs() / "llama-tiny-odd" / "config.json"));
}

// Layer 0 has 5 experts, layer 1 is dense.
models::DecoderConfig odd_experts() {
  models::DecoderConfig model = odd_model();
  model.experts = models::ExpertsConfig{.count = 5, .per_token = 2, .width = 7, .sparse = {true, false}};
  return model;
}

CountedBytes count(const StepPlanRequest& request) {
  CountedBytes counted;
  std::mutex mutex;
  comm::run_local(static_cast<int>(request.run->mesh.ranks), {}, [&](comm::World& world) {
    train::Trainer trainer(world, settings::trainer_options(request.run));
    runtime::Runtime& runtime = trainer.runtime();
    const std::lock_guard lock(mutex);
    for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id) {
      const shard::ShardedParameter& parameter = runtime.parameter(id);
      const auto at = [&](Counted& all) -> std::int64_t& {
        all[parameter.spec.name].resize(static_cast<std::size_t>(world.size()));
        return all[parameter.spec.name][static_cast<std::size_t>(world.rank())];
      };
      std::int64_t& storage = at(counted.storage);
      std::int64_t& compute = at(counted.compute);
      for (const shard::Plane& plane : parameter.planes) {
        storage += static_cast<std::int64_t>(plane.data.size());
        compute += plane.bytes(plane.local_compute.size);
      }
      std::int64_t& state = at(counted.state);
      state = static_cast<std::int64_t>(parameter.master.size());
      if (id >= runtime.parameters().weights()) continue;
      trainer.optimizer().for_each_plane(id, [&](const ops::StatePlane&, const base::Buffer& buffer) {
        state += static_cast<std::int64_t>(buffer.size());
      });
    }
  });
  return counted;
}

void expect_the_bytes_of_a_trainer(const StepPlanRequest& request) {
  const nlohmann::ordered_json inspected = inspect_layout(request.run);
  const CountedBytes counted = count(request);
  ASSERT_EQ(inspected["parameters"].size(), counted.storage.size());
  std::vector<std::int64_t> stored(static_cast<std::size_t>(request.run->mesh.ranks), 0);
  for (const nlohmann::ordered_json& parameter : inspected["parameters"]) {
    const std::string name = parameter["name"];
    SCOPED_TRACE(name);
    EXPECT_EQ(parameter["storage_bytes"].get<std::vector<std::int64_t>>(), counted.storage.at(name));
    EXPECT_EQ(parameter["compute_bytes"].get<std::vector<std::int64_t>>(), counted.compute.at(name));
    EXPECT_EQ(parameter["state_bytes"].get<std::vector<std::int64_t>>(), counted.state.at(name));
    for (std::size_t rank = 0; rank < stored.size(); ++rank) {
      stored[rank] += counted.storage.at(name)[rank];
      if (name == "embedding.weight") continue;  // its rows may travel by index
      EXPECT_EQ(parameter["gather_bytes"][rank], counted.compute.at(name)[rank] - counted.storage.at(name)[rank]);
    }
    std::size_t ranks = 0;
    for (const nlohmann::ordered_json& part : parameter["parts"]) ranks += part["ranks"].size();
    EXPECT_EQ(ranks, stored.size());
  }
  EXPECT_EQ(inspected["storage_bytes"].get<std::vector<std::int64_t>>(), stored);
}

class InspectedLayout : public ::testing::TestWithParam<Words> {};

TEST_P(InspectedLayout, HasTheBytesOfATrainersBuffers) {
  expect_the_bytes_of_a_trainer(request_of(GetParam(), odd_model()));
}

// A rule that is not part of the library, with one bf16 plane. If all ranks have equal shards, the plan also has the
// bytes of the buffers.
TEST(InspectedRule, HasTheBytesOfATrainersBuffers) {
  for (const Words& words : {Words{{"gtp", "3"}}, Words{{"gtp", "2"}, {"dp", "2"}, {"dtype", "bf16"}},
                             Words{{"tp", "2"}, {"gtp", "2"}, {"wire_format", "fp8"}, {"dtype", "bf16"}}}) {
    StepPlanRequest request = request_of(words, odd_model());
    request.run = request.run.with_update(ops::one_rule(train::testing::momentum_sgd()));
    expect_the_bytes_of_a_trainer(request);
  }
  StepPlanRequest request = request_of({{"gtp", "2"}, {"dp", "2"}, {"dtype", "bf16"}}, even_model());
  request.run = request.run.with_update(ops::one_rule(train::testing::momentum_sgd()));
  std::int64_t state = 0;
  for (const auto& [name, bytes] : count(request).state) state += bytes.front();
  EXPECT_EQ(plan_step(request).memory.optimizer, state);
}

// The events of exchanges of matrices, and their memory, are those of a run.
TEST(PlanOfMuonAgainstARun, EventsBytesAndArenasAreThoseOfTheRun) {
  for (const Words& words :
       {Words{{"optimizer", "muon"}}, Words{{"optimizer", "muon"}, {"gtp", "3"}, {"global_batch", "6"}},
        Words{{"optimizer", "muon"}, {"dtype", "bf16"}, {"gtp", "2"}, {"dp", "2"}},
        Words{{"optimizer", "muon"}, {"tp", "2"}, {"gtp", "2"}, {"wire_format", "fp8"}, {"dtype", "bf16"}}}) {
    StepPlanRequest request = request_of(words, odd_model());
    request.gather_budget = request.reduce_budget = schedule::kMinimum;  // a run chooses other budgets from its times
    const StepPlan step = expect_as_planned(request);
    EXPECT_GT(step.memory.matrices, 0);
  }
}

// Two rules, each with parameters of its own.
std::shared_ptr<const ops::UpdatePolicy> two_rules() {
  ops::UpdatePolicy policy;
  policy.rules = {ops::make_rule(ops::AdamW{}), train::testing::momentum_sgd()};
  for (const char* name : {"layers.0.attention.qkv.weight", "layers.1.mlp.down.weight"})
    policy.parameters[name] = {.rule = 1, .group = {.lr_factor = 0.5}};
  return std::make_shared<const ops::UpdatePolicy>(std::move(policy));
}

TEST(InspectedRules, HaveTheBytesOfATrainersBuffers) {
  for (const Words& words : {Words{{"gtp", "3"}}, Words{{"gtp", "2"}, {"dp", "2"}, {"dtype", "bf16"}}}) {
    StepPlanRequest request = request_of(words, odd_model());
    request.run = request.run.with_update(two_rules());
    expect_the_bytes_of_a_trainer(request);
  }
  StepPlanRequest request = request_of({{"gtp", "2"}, {"dp", "2"}, {"dtype", "bf16"}}, even_model());
  request.run = request.run.with_update(two_rules());
  const StepPlan step = plan_step(request);
  std::int64_t state = 0, parameters = 0;
  for (const auto& [name, bytes] : count(request).state) state += bytes.front();
  EXPECT_EQ(step.memory.optimizer, state);
  ASSERT_EQ(step.rules.size(), 2u);
  EXPECT_EQ(step.rules[0].rule, "adamw");
  EXPECT_EQ(step.rules[1].rule, "momentum_sgd");
  for (const predict::RuleBytes& rule : step.rules) parameters += rule.parameters;
  EXPECT_EQ(step.rules[0].state + step.rules[1].state + step.memory.dense.masters, state);
  EXPECT_EQ(step.memory.dense.masters, 2 * parameters);  // split masters
  // An update reads and writes masters, weights and planes, and reads gradients of 2 or 4 bytes.
  EXPECT_EQ(step.rules[0].state, 8 * step.rules[0].parameters);
  EXPECT_EQ(step.rules[1].state, 2 * step.rules[1].parameters);
  EXPECT_GE(step.rules[0].update, 26 * step.rules[0].parameters);
  EXPECT_LE(step.rules[0].update, 28 * step.rules[0].parameters);
  EXPECT_GE(step.rules[1].update, 14 * step.rules[1].parameters);
  EXPECT_LE(step.rules[1].update, 16 * step.rules[1].parameters);
  const nlohmann::ordered_json json = predict::rules_json(step.rules);
  EXPECT_EQ(json[1]["planes"].dump(), R"({"momentum":"bf16"})");
  EXPECT_EQ(json[0]["update_bytes"], step.rules[0].update);
  EXPECT_THAT(predict::rules_text(step.rules), ::testing::HasSubstr("exp_avg fp32 + exp_avg_sq fp32"));
}

TEST(InspectedRules, ListThePlaneOfMuon) {
  const Words words{{"optimizer", "muon"}, {"gtp", "2"}, {"dp", "2"}, {"dtype", "bf16"}};
  expect_the_bytes_of_a_trainer(request_of(words, odd_model()));
  const StepPlan step = plan_step(request_of(words, even_model()));
  ASSERT_EQ(step.rules.size(), 2u);
  for (const predict::RuleBytes& rule : step.rules) EXPECT_GT(rule.parameters, 0) << rule.rule;
  const nlohmann::ordered_json rules = predict::rules_json(step.rules);
  const std::size_t muon = rules[0]["rule"] == "muon" ? 0 : 1;
  EXPECT_EQ(rules[muon]["rule"], "muon");
  EXPECT_EQ(rules[muon]["planes"].dump(), R"({"momentum":"fp32"})");
  EXPECT_EQ(step.rules[muon].state, 4 * step.rules[muon].parameters);
  EXPECT_EQ(step.rules[1 - muon].state, 8 * step.rules[1 - muon].parameters);
  EXPECT_THAT(predict::rules_text(step.rules), ::testing::HasSubstr("momentum fp32"));
}

class InspectedExperts : public ::testing::TestWithParam<Words> {};

TEST_P(InspectedExperts, HaveTheBytesOfATrainersBuffers) {
  expect_the_bytes_of_a_trainer(request_of(GetParam(), odd_experts()));
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, InspectedExperts,
    ::testing::Values(
        Words{}, Words{{"gtp", "3"}, {"egtp", "3"}}, Words{{"gtp", "4"}, {"ep", "2"}, {"dtype", "bf16"}},
        Words{{"gtp", "4"}, {"ep", "2"}, {"egtp", "2"}, {"dp", "2"}, {"zero", "on"}, {"dtype", "bf16"}},
        Words{{"gtp", "4"}, {"ep", "4"}, {"dtype", "bf16"}, {"wire_format", "mxfp8"}},
        Words{{"tp", "2"}, {"gtp", "2"}, {"etp", "2"}, {"egtp", "2"}, {"sequence_parallel", "on"}},
        Words{{"tp", "2"}, {"gtp", "3"}, {"ep", "2"}, {"egtp", "3"}, {"sequence_parallel", "on"}, {"dtype", "bf16"}}));

INSTANTIATE_TEST_SUITE_P(
    Meshes, InspectedLayout,
    ::testing::Values(
        Words{}, Words{{"tp", "2"}}, Words{{"gtp", "3"}}, Words{{"dp", "2"}}, Words{{"dp", "3"}, {"zero", "on"}},
        Words{{"tp", "2"}, {"gtp", "2"}, {"dtype", "bf16"}},
        Words{{"tp", "3"}, {"gtp", "2"}, {"dp", "2"}, {"zero", "on"}, {"dtype", "bf16"}},
        Words{{"tp", "2"}, {"gtp", "5"}}, Words{{"gtp", "4"}, {"dtype", "bf16"}, {"wire_format", "fp8"}},
        Words{{"gtp", "2"}, {"dp", "2"}, {"zero", "on"}, {"dtype", "bf16"}, {"wire_format", "fp8_block"}},
        Words{{"gtp", "3"}, {"dtype", "bf16"}, {"wire_format", "mxfp8"}, {"wire_format_backward", "fp8_block"}},
        Words{{"tp", "5"}, {"sequence_parallel", "on"}}));

TEST(InspectedLayouts, ListGroupsAndParts) {
  const StepPlanRequest request = request_of({{"tp", "2"}, {"gtp", "2"}, {"dp", "2"}});
  const nlohmann::ordered_json inspected = inspect_layout(request.run);
  EXPECT_EQ(inspected["grids"].dump(), R"([[{"axis":"tp","size":2},{"axis":"gtp","size":2},{"axis":"dp","size":2}]])");
  std::map<std::string, std::string> groups;
  for (const nlohmann::ordered_json& role : inspected["roles"]) groups[role["role"]] = role["groups"].dump();
  EXPECT_EQ(groups.at("gather over gtp"), "[[0,2],[1,3],[4,6],[5,7]]");
  EXPECT_EQ(groups.at("replicas over dp"), "[[0,4],[1,5],[2,6],[3,7]]");
  EXPECT_EQ(groups.at("program over tp"), "[[0,1],[2,3],[4,5],[6,7]]");
  EXPECT_EQ(groups.at("losses over gtp, dp"), "[[0,2,4,6],[1,3,5,7]]");
  EXPECT_EQ(groups.at("norm over tp, gtp, dp"), "[[0,1,2,3,4,5,6,7]]");
  // The feed-forward output of hidden size 8 has 12 columns, 6 for each tp rank; each gtp rank stores 4 of the 8 rows,
  // of which each replica updates 2.
  for (const nlohmann::ordered_json& parameter : inspected["parameters"]) {
    if (parameter["name"] != "layers.1.mlp.down.weight") continue;
    EXPECT_EQ(parameter["parts"][1]["ranks"].dump(), "[1]");
    EXPECT_EQ(parameter["parts"][1]["storage"].dump(), "[[0,4,6,12]]");
    EXPECT_EQ(parameter["parts"][1]["compute"].dump(), "[[0,8,6,12]]");
    EXPECT_EQ(parameter["parts"][1]["state"].dump(), "[[0,2,6,12]]");
  }
  const std::string text = layout_text(inspected, /*max_groups=*/3);
  for (const char* line : {"8 ranks", "  tp 2 x gtp 2 x dp 2\n", "gather over gtp", "[0 2] [1 3] [4 6] and 1 more\n",
                           "    storage              96 bytes  0:4 x 6:12\n"})
    EXPECT_THAT(text, ::testing::HasSubstr(line));
}

}  // namespace
}  // namespace tessera::plan
