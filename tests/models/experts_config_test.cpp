// Tests the fields that Mixtral and Qwen3-MoE read from a config.json, and the fields that they refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/models/decoder/decoder_model.h"
#include "tessera/models/registry.h"

namespace tessera::models {
namespace {
using nlohmann::json;
using ::testing::HasSubstr;

json expert_sizes(const char* model_type) {
  return {{"model_type", model_type}, {"vocab_size", 131},      {"hidden_size", 64},
          {"intermediate_size", 77},  {"num_hidden_layers", 6}, {"num_attention_heads", 32}};
}

DecoderConfig parse_experts(const json& file) {
  return decoder_of(*parse_model_config(file, "f"));
}

// The values of transformers' MixtralConfig.
TEST(MixtralConfig, HasItsOwnDefaults) {
  const DecoderConfig expected{.vocab_size = 131,
                               .hidden_size = 64,
                               .intermediate_size = 77,
                               .num_layers = 6,
                               .num_heads = 32,
                               .num_kv_heads = 8,
                               .head_dim = 2,
                               .max_position_embeddings = 131072,
                               .rope_theta = 1e6,
                               .rms_norm_eps = 1e-5,
                               .experts = ExpertsConfig{.count = 8,
                                                        .per_token = 2,
                                                        .width = 77,
                                                        .normalizes_weights = true,
                                                        .aux_coefficient = 0.001,
                                                        .sparse = std::vector<bool>(6, true)}};
  EXPECT_EQ(parse_experts(expert_sizes("mixtral")), expected);
}

TEST(MixtralConfig, ReadsItsFields) {
  json file = expert_sizes("mixtral");
  file.update({{"num_local_experts", 7},
               {"num_experts_per_tok", 7},
               {"router_aux_loss_coef", 0.0},
               {"router_jitter_noise", 0.0},
               {"output_router_logits", true},
               {"sliding_window", nullptr},
               {"rope_theta", 1234.0},
               {"rms_norm_eps", 1e-6},
               {"num_key_value_heads", 4}});
  const DecoderConfig config = parse_experts(file);
  const ExpertsConfig expected{.count = 7,
                               .per_token = 7,
                               .width = 77,
                               .normalizes_weights = true,
                               .aux_coefficient = 0,
                               .sparse = std::vector<bool>(6, true)};
  EXPECT_EQ(config.experts, expected);
  EXPECT_EQ(config.rope_theta, 1234.0);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.num_kv_heads, 4);
}

// The values of transformers' Qwen3MoeConfig.
TEST(Qwen3MoeConfig, HasItsOwnDefaults) {
  const DecoderConfig expected{.vocab_size = 131,
                               .hidden_size = 64,
                               .intermediate_size = 77,
                               .num_layers = 6,
                               .num_heads = 32,
                               .num_kv_heads = 4,
                               .head_dim = 2,
                               .max_position_embeddings = 32768,
                               .has_head_norms = true,
                               .experts = ExpertsConfig{.count = 128,
                                                        .per_token = 8,
                                                        .width = 768,
                                                        .normalizes_weights = false,
                                                        .aux_coefficient = 0.001,
                                                        .sparse = std::vector<bool>(6, true)}};
  EXPECT_EQ(parse_experts(expert_sizes("qwen3_moe")), expected);
}

json qwen_with_dense_layers() {
  json file = expert_sizes("qwen3_moe");
  file.update({{"num_experts", 7},
               {"num_experts_per_tok", 3},
               {"moe_intermediate_size", 29},
               {"norm_topk_prob", true},
               {"router_aux_loss_coef", 0.25},
               {"decoder_sparse_step", 2},
               {"mlp_only_layers", {3}},
               {"head_dim", 10}});
  return file;
}

TEST(Qwen3MoeConfig, ReadsItsFields) {
  const DecoderConfig config = parse_experts(qwen_with_dense_layers());
  const ExpertsConfig expected{.count = 7,
                               .per_token = 3,
                               .width = 29,
                               .normalizes_weights = true,
                               .aux_coefficient = 0.25,
                               .sparse = {false, true, false, false, false, true}};
  EXPECT_EQ(config.experts, expected);
  EXPECT_EQ(config.head_dim, 10);
  EXPECT_EQ(config.intermediate_size, 77);
  EXPECT_TRUE(config.is_sparse(1));
  EXPECT_FALSE(config.is_sparse(3));
}

// transformers 5 writes num_local_experts for Qwen3-MoE too.
TEST(ExpertConfigs, TheNumberOfExpertsHasTwoNames) {
  for (const char* type : {"mixtral", "qwen3_moe"})
    for (const char* name : {"num_experts", "num_local_experts"}) {
      json file = expert_sizes(type);
      file[name] = 19;
      EXPECT_EQ(parse_experts(file).experts->count, 19) << type << " " << name;
      file["num_experts"] = file["num_local_experts"] = 19;
      EXPECT_EQ(parse_experts(file).experts->count, 19) << type << " " << name;
    }
}

TEST(ExpertConfigs, NeutralFieldsOfOtherModelsAreAccepted) {
  for (const char* type : {"mixtral", "qwen3_moe"}) {
    json file = expert_sizes(type);
    const DecoderConfig expected = parse_experts(file);
    file.update({{"n_shared_experts", 0},
                 {"num_shared_experts", nullptr},
                 {"shared_expert_intermediate_size", 0},
                 {"n_group", 1},
                 {"topk_group", 1},
                 {"routed_scaling_factor", 1.0},
                 {"first_k_dense_replace", 0},
                 {"scoring_func", "softmax"},
                 {"mlp_only_layers", json::array()}});
    EXPECT_EQ(parse_experts(file), expected);
  }
}

TEST(ExpertConfigs, RoundTripThroughHuggingFaceForm) {
  json mixtral = expert_sizes("mixtral");
  mixtral.update({{"num_local_experts", 5}, {"num_experts_per_tok", 3}, {"router_aux_loss_coef", 0.0}});
  for (const json& file : {mixtral, expert_sizes("mixtral"), qwen_with_dense_layers(), expert_sizes("qwen3_moe")}) {
    const ModelConfigPtr config = parse_model_config(file, "f");
    const json written = json::parse(config->to_json().dump());
    EXPECT_EQ(parse_experts(written), decoder_of(*config)) << written;
    EXPECT_EQ(written["model_type"], file["model_type"]);
  }
}

TEST(ExpertConfigs, HaveThePublishedSizes) {
  const std::filesystem::path configs = TESSERA_CONFIGS;
  const auto model = [&](const char* name) { return read_model_config(find_model_config(name, configs)); };
  EXPECT_EQ(num_params(*model("mixtral-8x7b")), 46702792704);
  EXPECT_EQ(num_params(*model("qwen3-30b-a3b")), 30532122624);
  EXPECT_NEAR(static_cast<double>(num_params(*model("mixtral-demo"))), 15e6, 1e6);
  EXPECT_EQ(num_active_params(*model("mixtral-8x7b")), 12879925248);
  EXPECT_EQ(num_active_params(*model("qwen3-30b-a3b")), 3353032704);
  EXPECT_EQ(num_active_params(*model("llama-demo")), num_params(*model("llama-demo")));
  EXPECT_EQ(params_text(*model("mixtral-8x7b")), "46702.79 M parameters (12879.93 M active)");
  EXPECT_EQ(params_text(*model("llama3-8b")), "8030.26 M parameters");
  EXPECT_EQ(model("mixtral-8x7b")->sizes().num_experts, 8);
  EXPECT_EQ(model("mixtral-8x7b")->sizes().experts_per_token, 2);
  EXPECT_EQ(model("llama-demo")->sizes().num_experts, 0);
  const DecoderConfig qwen = decoder_of(*model("qwen3-moe-tiny-odd"));
  EXPECT_EQ(qwen.experts->sparse, (std::vector<bool>{true, false}));
}

struct RefusedExperts {
  const char *model_type, *field, *value, *expected;
};
class ExpertConfigErrors : public ::testing::TestWithParam<RefusedExperts> {};

TEST_P(ExpertConfigErrors, NameTheFieldAndItsValue) {
  const RefusedExperts& refused = GetParam();
  json file = expert_sizes(refused.model_type);
  file[refused.field] = json::parse(refused.value);
  try {
    parse_model_config(file, "some/config.json");
    FAIL() << "accepted " << file;
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr(fmt::format("some/config.json: field '{}' is", refused.field)));
    EXPECT_THAT(error.what(), HasSubstr(refused.expected));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

constexpr const char *kMixtralType = "mixtral", *kQwenType = "qwen3_moe";
INSTANTIATE_TEST_SUITE_P(
    Fields, ExpertConfigErrors,
    ::testing::Values(
        RefusedExperts{kMixtralType, "num_experts_per_tok", "9", "is 9, expected at most the number of experts, 8"},
        RefusedExperts{kQwenType, "num_experts_per_tok", "129", "is 129, expected at most the number of experts, 128"},
        RefusedExperts{kMixtralType, "num_experts_per_tok", "0", "is 0, expected an integer from 1"},
        RefusedExperts{kMixtralType, "num_local_experts", "0", "is 0, expected an integer from 1"},
        RefusedExperts{kMixtralType, "num_local_experts", "1.5", "is 1.5, expected an integer from 1"},
        RefusedExperts{kQwenType, "num_experts", "0", "is 0, expected an integer from 1"},
        RefusedExperts{kQwenType, "num_experts", "\"8\"", "is \"8\", expected an integer from 1"},
        RefusedExperts{kQwenType, "moe_intermediate_size", "0", "is 0, expected an integer from 1"},
        RefusedExperts{kMixtralType, "router_jitter_noise", "0.1", "is 0.1, expected 0: noise"},
        RefusedExperts{kMixtralType, "router_aux_loss_coef", "-1", "is -1, expected a number, 0 or more"},
        RefusedExperts{kQwenType, "router_aux_loss_coef", "\"a\"", "expected a number, 0 or more"},
        RefusedExperts{kMixtralType, "sliding_window", "4096", "is 4096, expected null: sliding windows"},
        RefusedExperts{kMixtralType, "attention_bias", "true", "biases are not supported"},
        RefusedExperts{kMixtralType, "hidden_act", R"("gelu")", "\"silu\""},
        RefusedExperts{kMixtralType, "num_key_value_heads", "5", "a divisor of num_attention_heads 32"},
        RefusedExperts{kQwenType, "attention_bias", "true", "biases are not supported"},
        RefusedExperts{kQwenType, "use_sliding_window", "true", "is true, expected false"},
        RefusedExperts{kQwenType, "norm_topk_prob", "1", "is 1, expected true or false"},
        RefusedExperts{kQwenType, "decoder_sparse_step", "0", "is 0, expected an integer from 1"},
        RefusedExperts{kQwenType, "decoder_sparse_step", "7", "is 7, expected at least one layer with experts"},
        RefusedExperts{kQwenType, "mlp_only_layers", "[0, 1, 2, 3, 4, 5]", "expected at least one layer with experts"},
        RefusedExperts{kQwenType, "mlp_only_layers", "[6]", "expected a list of layers from 0 to 5"},
        RefusedExperts{kQwenType, "mlp_only_layers", "[-1]", "expected a list of layers from 0 to 5"},
        RefusedExperts{kQwenType, "mlp_only_layers", "[0.5]", "expected a list of layers from 0 to 5"},
        RefusedExperts{kQwenType, "mlp_only_layers", "3", "expected a list of layers from 0 to 5"}),
    [](const auto& info) { return fmt::format("{}_{}_{}", info.param.model_type, info.param.field, info.index); });
INSTANTIATE_TEST_SUITE_P(
    FieldsOfOtherModels, ExpertConfigErrors,
    ::testing::Values(
        RefusedExperts{kQwenType, "n_shared_experts", "1", "is 1, expected 0: shared experts are not supported"},
        RefusedExperts{kMixtralType, "num_shared_experts", "2", "is 2, expected 0: shared experts"},
        RefusedExperts{kQwenType, "shared_expert_intermediate_size", "64", "is 64, expected 0: shared experts"},
        RefusedExperts{kQwenType, "n_group", "8", "is 8, expected 1: groups of experts are not supported"},
        RefusedExperts{kMixtralType, "topk_group", "4", "is 4, expected 1: groups of experts"},
        RefusedExperts{kQwenType, "routed_scaling_factor", "2.5", "is 2.5, expected 1: a factor"},
        RefusedExperts{kQwenType, "first_k_dense_replace", "1", "is 1, expected 0: dense first layers"},
        RefusedExperts{kMixtralType, "scoring_func", R"("sigmoid")", "is \"sigmoid\", expected \"softmax\""}),
    [](const auto& info) { return fmt::format("{}_{}", info.param.model_type, info.param.field); });

TEST(ExpertConfigs, RefuseTwoNumbersOfExperts) {
  json file = expert_sizes("qwen3_moe");
  file["num_experts"] = 16;
  file["num_local_experts"] = 17;
  try {
    parse_model_config(file, "f");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("field 'num_local_experts' is 17, expected 16, as num_experts"));
  }
}

// The experts are counted too: without them, the model has 1e9 parameters.
TEST(ExpertConfigs, RefuseASizeThatOverflows) {
  json file = expert_sizes("qwen3_moe");
  file.update({{"hidden_size", 1000000}, {"num_experts", 65536}, {"moe_intermediate_size", 1000000}});
  EXPECT_THAT([&] { parse_experts(file); },
              ::testing::ThrowsMessage<InputError>(
                  HasSubstr("f: the model would have 1.18e+18 parameters, expected at most 1e+15")));
}

TEST(ExpertConfigs, RefuseMoreExpertsThanAListOfTensorsCanHold) {
  json file = expert_sizes("mixtral");
  file["num_local_experts"] = 65537;
  EXPECT_THAT([&] { parse_experts(file); },
              ::testing::ThrowsMessage<InputError>(
                  HasSubstr("f: the model would have 65537 experts in a layer, expected at most 65536")));
  file["num_local_experts"] = 65536;
  EXPECT_NO_THROW(parse_experts(file));
  file["num_hidden_layers"] = 17;
  EXPECT_THAT([&] { parse_experts(file); },
              ::testing::ThrowsMessage<InputError>(HasSubstr(
                  "f: the model would have 65536 experts in each of 17 layers, expected at most 1048576 in all")));
  file = expert_sizes("dots1");
  file.update({{"n_routed_experts", 8}, {"num_experts_per_tok", 2}, {"n_shared_experts", 2147483647}});
  EXPECT_THAT([&] { parse_experts(file); },
              ::testing::ThrowsMessage<InputError>(
                  HasSubstr("'n_shared_experts' is 2147483647, expected an integer from 0 to 744")));
}

TEST(ExpertConfigs, KnownModelsThatAreNotSupportedAreNamed) {
  EXPECT_THAT([] { parse_experts(expert_sizes("deepseek_v3")); },
              ::testing::ThrowsMessage<InputError>(
                  ::testing::AllOf(HasSubstr("'model_type' is \"deepseek_v3\""),
                                   HasSubstr("multi-head latent attention (MLA), which is not supported"))));
}

}  // namespace
}  // namespace tessera::models
