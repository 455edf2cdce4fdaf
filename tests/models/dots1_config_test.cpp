// Tests the fields that dots1 reads from a config.json, the fields that it refuses, and its parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/models/decoder/decoder_model.h"
#include "tessera/models/decoder/decoder_parameters.h"
#include "tessera/models/registry.h"

namespace tessera::models {
namespace {
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json dots1_sizes() {
  return {{"model_type", "dots1"},  {"vocab_size", 131},         {"hidden_size", 64},      {"intermediate_size", 77},
          {"num_hidden_layers", 6}, {"num_attention_heads", 32}, {"n_routed_experts", 12}, {"num_experts_per_tok", 3}};
}

DecoderConfig parse_dots(const json& file) {
  return decoder_of(*parse_model_config(file, "f"));
}

// The values of transformers' Dots1Config, except those without a default.
TEST(Dots1Config, HasItsOwnDefaults) {
  const DecoderConfig expected{.vocab_size = 131,
                               .hidden_size = 64,
                               .intermediate_size = 77,
                               .num_layers = 6,
                               .num_heads = 32,
                               .num_kv_heads = 32,
                               .head_dim = 2,
                               .max_position_embeddings = 2048,
                               .has_head_norms = true,
                               .experts = ExpertsConfig{.count = 12,
                                                        .per_token = 3,
                                                        .width = 1408,
                                                        .normalizes_weights = false,
                                                        .sparse = std::vector<bool>(6, true),
                                                        .score = ops::RouterScore::sigmoid,
                                                        .has_router_bias = true}};
  EXPECT_EQ(parse_dots(dots1_sizes()), expected);
}

json dots1_with_everything() {
  json file = dots1_sizes();
  file.update({{"moe_intermediate_size", 29},
               {"first_k_dense_replace", 2},
               {"n_shared_experts", 2},
               {"n_group", 4},
               {"topk_group", 3},
               {"norm_topk_prob", true},
               {"routed_scaling_factor", 2.5},
               {"scoring_func", "noaux_tc"},
               {"num_local_experts", 12},
               {"sliding_window", 4096},
               {"moe_layer_freq", 1},
               {"topk_method", "noaux_tc"},
               {"router_aux_loss_coef", 0.0},
               {"q_lora_rank", nullptr}});
  return file;
}

TEST(Dots1Config, ReadsItsFields) {
  const ExpertsConfig expected{.count = 12,
                               .per_token = 3,
                               .width = 29,
                               .normalizes_weights = true,
                               .sparse = {false, false, true, true, true, true},
                               .score = ops::RouterScore::sigmoid,
                               .groups = 4,
                               .chosen_groups = 3,
                               .weight_scale = 2.5,
                               .has_router_bias = true,
                               .shared_width = 58};
  EXPECT_EQ(parse_dots(dots1_with_everything()).experts, expected);
}

TEST(Dots1Config, RoundTripsThroughHuggingFaceForm) {
  for (const json& file : {dots1_sizes(), dots1_with_everything()}) {
    const ModelConfigPtr config = parse_model_config(file, "f");
    const json written = json::parse(config->to_json().dump());
    EXPECT_EQ(parse_dots(written), decoder_of(*config)) << written;
    EXPECT_EQ(written["architectures"], json::array({"Dots1ForCausalLM"}));
  }
}

TEST(Dots1Config, HasThePublishedSize) {
  const ModelConfigPtr config = read_model_config(find_model_config("dots.llm1", TESSERA_CONFIGS));
  EXPECT_NEAR(static_cast<double>(num_params(*config)), 142e9, 1e9);
  EXPECT_NEAR(static_cast<double>(num_active_params(*config)), 14e9, 1e9);
  EXPECT_TRUE(config->sizes().has_router_bias);
}

TEST(Dots1Parameters, HaveTheOrderOfTheirIds) {
  const DecoderConfig config = parse_dots(dots1_with_everything());
  const std::vector<shard::ParameterSpec> specs = decoder_parameters(config, {});
  const DecoderIds ids = decoder_ids(config);
  EXPECT_EQ(ids.blocks[0].router_bias, schedule::kNoParameter);
  const DecoderBlockIds& sparse = ids.blocks[2];
  std::vector<std::string> names;
  for (const schedule::ParameterId id : {sparse.router, sparse.router_bias, sparse.experts_gate_up, sparse.experts_down,
                                         sparse.shared_gate_up, sparse.shared_down})
    names.push_back(specs[static_cast<std::size_t>(id)].name);
  EXPECT_THAT(names, ElementsAre("layers.2.router.weight", "layers.2.router.bias", "layers.2.experts.gate_up.weight",
                                 "layers.2.experts.down.weight", "layers.2.shared_expert.gate_up.weight",
                                 "layers.2.shared_expert.down.weight"));
  const shard::ParameterSpec& bias = specs[static_cast<std::size_t>(sparse.router_bias)];
  EXPECT_FALSE(bias.trainable);
  EXPECT_FALSE(bias.decay);
  EXPECT_TRUE(bias.is_wide);
  EXPECT_EQ(static_cast<std::size_t>(ids.output), specs.size() - 1);
}

struct RefusedDots {
  const char *field, *value, *expected;
};
class Dots1ConfigErrors : public ::testing::TestWithParam<RefusedDots> {};

TEST_P(Dots1ConfigErrors, NameTheFieldAndItsValue) {
  json file = dots1_with_everything();
  file[GetParam().field] = json::parse(GetParam().value);
  try {
    parse_model_config(file, "some/config.json");
    FAIL() << "accepted " << file;
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr(fmt::format("some/config.json: field '{}' is", GetParam().field)));
    EXPECT_THAT(error.what(), HasSubstr(GetParam().expected));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Fields, Dots1ConfigErrors,
    ::testing::Values(
        RefusedDots{"n_group", "5", "is 5, expected a divisor of the number of experts, 12"},
        RefusedDots{"n_group", "12", "is 12, expected a divisor of the number of experts, 12, with at least 2"},
        RefusedDots{"n_group", "0", "is 0, expected an integer from 1"},
        RefusedDots{"topk_group", "5", "is 5, expected at most n_group, 4"},
        RefusedDots{"num_experts_per_tok", "10", "is 10, expected at most the experts of topk_group groups, 9"},
        RefusedDots{"num_experts_per_tok", "13", "is 13, expected at most the number of experts, 12"},
        RefusedDots{"n_routed_experts", "0", "is 0, expected an integer from 1"},
        RefusedDots{"num_local_experts", "11", "is 11, expected 12, as n_routed_experts"},
        RefusedDots{"first_k_dense_replace", "6", "is 6, expected less than num_hidden_layers 6"},
        RefusedDots{"first_k_dense_replace", "-1", "is -1, expected an integer from 0 to 2147483647"},
        RefusedDots{"n_shared_experts", "1.5", "is 1.5, expected an integer from 0 to"},
        RefusedDots{"routed_scaling_factor", "0", "is 0, expected a number above 0"},
        RefusedDots{"scoring_func", R"("softmax")", "is \"softmax\", expected \"sigmoid\""},
        RefusedDots{"topk_method", R"("greedy")", "expected \"noaux_tc\""},
        RefusedDots{"moe_layer_freq", "2", "is 2, expected 1"},
        RefusedDots{"router_aux_loss_coef", "0.001", "is 0.001, expected 0: dots1 has no auxiliary loss"},
        RefusedDots{"aux_loss_alpha", "0.1", "is 0.1, expected 0"},
        RefusedDots{"kv_lora_rank", "512", "multi-head latent attention is not supported"},
        RefusedDots{"layer_types", R"(["sliding_attention"])", "sliding windows are not supported"},
        RefusedDots{"attention_bias", "true", "biases are not supported"}),
    [](const auto& info) { return fmt::format("{}_{}", info.param.field, info.index); });

TEST(Dots1Config, RefusesSlidingWindowsOfLateLayers) {
  json file = dots1_with_everything();
  file["max_window_layers"] = 4;
  EXPECT_THAT([&] { parse_dots(file); },
              ::testing::ThrowsMessage<InputError>(HasSubstr("field 'sliding_window' is 4096, expected null")));
  file["sliding_window"] = nullptr;
  EXPECT_NO_THROW(parse_dots(file));
}

TEST(Dots1Config, NeedsItsNumbersOfExperts) {
  for (const char* name : {"n_routed_experts", "num_experts_per_tok"}) {
    json file = dots1_sizes();
    file.erase(name);
    EXPECT_THAT([&] { parse_dots(file); }, ::testing::ThrowsMessage<InputError>(HasSubstr(name)));
  }
}

}  // namespace
}  // namespace tessera::models
