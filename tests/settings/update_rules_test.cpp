// Tests learning rates and weight decays by name of a parameter.
#include "tessera/settings/resolve/update_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/settings/config_test_support.h"

namespace tessera::settings {
namespace {

using ::testing::HasSubstr;

ops::UpdatePolicy policy_of(std::vector<std::string> flags) {
  return *run_of(parse(flags)).update();
}

TEST(UpdateRules, AreThoseOfTheLastMatch) {
  const ops::UpdatePolicy policy = policy_of(
      {"--lr-rules", "*=2,layers.*=0.5,*norm*=0", "--decay-rules", "layers.1.mlp.down.weight=0.25,norm.weight=1e-3"});
  const auto group = [&](const char* name, bool decays) { return policy.update_of(name, decays).group; };
  using Group = ops::UpdateGroup;
  EXPECT_EQ(group("embedding.weight", true), (Group{.lr_factor = 2}));
  EXPECT_EQ(group("layers.0.mlp.down.weight", true), (Group{.lr_factor = 0.5}));
  EXPECT_EQ(group("layers.1.mlp.down.weight", true), (Group{.lr_factor = 0.5, .decay = 0.25}));
  EXPECT_EQ(group("layers.1.mlp_norm.weight", false), (Group{.lr_factor = 0, .decay = 0}));
  EXPECT_EQ(group("norm.weight", false), (Group{.lr_factor = 0, .decay = 1e-3}));
}

TEST(UpdateRules, AreAbsentByDefault) {
  const ops::UpdatePolicy policy = policy_of({});
  EXPECT_TRUE(policy.parameters.empty());
  ASSERT_EQ(policy.rules.size(), 1u);
  EXPECT_EQ(policy.rules.front()->name(), "adamw");
  EXPECT_TRUE(policy_of({"--lr-rules", ""}).parameters.empty());
}

TEST(UpdateRules, MustMatchATrainedParameter) {
  for (const std::string flag : {"--lr-rules", "--decay-rules"}) {
    EXPECT_THAT(base::refusal([&] {
                  policy_of({flag, "*=1,layers.*.ffn=0.5"});
                }),
                HasSubstr(flag + ": got layers.*.ffn=0.5, expected the name of a trained parameter: embedding.weight"));
    EXPECT_THAT(base::refusal([&] {
                  policy_of({flag, "norm.weight=1,*=0"});
                }),
                HasSubstr(flag + ": got norm.weight=1, which has no effect"));
  }
}

TEST(UpdateRules, MuonUpdatesTheMatricesBetweenEmbeddingAndOutput) {
  const ops::UpdatePolicy policy = policy_of({"--optimizer", "muon", "--muon-lr", "6e-3", "--lr", "3e-3", "--lr-rules",
                                              "layers.0.*=0.5", "--optimizer-rules", "layers.1.mlp.*=adamw"});
  ASSERT_EQ(policy.rules.size(), 2u);
  const auto rule = [&](const char* name) { return policy.rule_of(name).name(); };
  EXPECT_EQ(rule("embedding.weight"), "adamw");
  EXPECT_EQ(rule("layers.0.attention_norm.weight"), "adamw");
  EXPECT_EQ(rule("layers.0.attention.qkv.weight"), "muon");
  EXPECT_EQ(rule("layers.0.mlp.down.weight"), "muon");
  EXPECT_EQ(rule("layers.1.mlp.down.weight"), "adamw");
  EXPECT_EQ(policy.update_of("layers.0.mlp.down.weight", true).group.lr_factor, 1);
  EXPECT_EQ(policy.update_of("layers.1.attention.qkv.weight", true).group.lr_factor, 2);
  EXPECT_EQ(policy.update_of("layers.1.mlp.down.weight", true).group.lr_factor, 1);
}

TEST(UpdateRules, RefuseMuonWhereItHasNoMatrices) {
  const auto refusal = [](std::vector<std::string> flags) { return base::refusal([&] { policy_of(flags); }); };
  EXPECT_THAT(refusal({"--optimizer-rules", "*norm*=muon"}), HasSubstr("--optimizer-rules: got muon for "));
  EXPECT_THAT(refusal({"--optimizer-rules", "norm.weight=muon"}), HasSubstr("norm.weight, a vector"));
  EXPECT_THAT(refusal({"--optimizer", "muon", "--optimizer-rules", "embedding.weight=muon"}),
              HasSubstr("embedding.weight, a table whose rows are read by index"));
  EXPECT_THAT(refusal({"--optimizer-rules", "layers.*.ffn=muon"}),
              HasSubstr("--optimizer-rules: got layers.*.ffn=muon, expected the name of a trained parameter"));
}

TEST(UpdateRules, RefuseSettingsOfMuonWithoutAnEffect) {
  const auto refusal = [](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--model", "llama-tiny", "--data", "d", "--steps", "4", "--out", "o"});
    return base::refusal([&] { check(parse(flags)); });
  };
  EXPECT_THAT(refusal({"--muon-momentum", "0.9"}),
              HasSubstr("--muon-momentum: got 0.9, expected it with --optimizer muon"));
  EXPECT_THAT(refusal({"--muon-nesterov", "off"}), HasSubstr("--muon-nesterov: got false"));
  EXPECT_THAT(refusal({"--optimizer", "muon", "--lr", "0", "--muon-lr", "1"}), HasSubstr("--muon-lr: got 1"));
}

}  // namespace
}  // namespace tessera::settings
