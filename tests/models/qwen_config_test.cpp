// Tests the fields that Qwen2 and Qwen3 read from a config.json, and the fields that they refuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/models/decoder/decoder_model.h"
#include "tessera/models/registry.h"

namespace tessera::models {
namespace {
using nlohmann::json;
using ::testing::HasSubstr;

json sizes(const char* model_type) {
  return {{"model_type", model_type}, {"vocab_size", 131},      {"hidden_size", 64},
          {"intermediate_size", 77},  {"num_hidden_layers", 2}, {"num_attention_heads", 32}};
}

DecoderConfig parse(const json& file) {
  return decoder_of(*parse_model_config(file, "f"));
}

TEST(Qwen2Config, HasItsOwnDefaults) {
  json file = sizes("qwen2");
  const DecoderConfig expected{.vocab_size = 131,
                               .hidden_size = 64,
                               .intermediate_size = 77,
                               .num_layers = 2,
                               .num_heads = 32,
                               .num_kv_heads = 32,
                               .head_dim = 2,
                               .max_position_embeddings = 32768,
                               .has_qkv_bias = true};
  EXPECT_EQ(parse(file), expected);
  file["num_attention_heads"] = 16;
  file["num_key_value_heads"] = nullptr;
  EXPECT_EQ(parse(file).num_kv_heads, 16);
}

TEST(Qwen3Config, HasItsOwnDefaults) {
  const DecoderConfig expected{.vocab_size = 131,
                               .hidden_size = 64,
                               .intermediate_size = 77,
                               .num_layers = 2,
                               .num_heads = 32,
                               .num_kv_heads = 32,
                               .head_dim = 128,
                               .max_position_embeddings = 32768,
                               .has_head_norms = true};
  EXPECT_EQ(parse(sizes("qwen3")), expected);
}

struct Refused {
  const char *model_type, *field, *value, *expected;
};
class QwenConfigErrors : public ::testing::TestWithParam<Refused> {};

TEST_P(QwenConfigErrors, NameTheFieldAndItsValue) {
  const Refused& refused = GetParam();
  json file = sizes(refused.model_type);
  file[refused.field] = json::parse(refused.value);
  try {
    parse_model_config(file, "some/config.json");
    FAIL() << "accepted " << file;
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr(fmt::format("some/config.json: field '{}", refused.field)));
    EXPECT_THAT(error.what(), HasSubstr(refused.expected));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, QwenConfigErrors,
    ::testing::Values(Refused{"qwen2", "use_sliding_window", "true", "is true, expected false"},
                      Refused{"qwen3", "use_sliding_window", "true", "is true, expected false"},
                      Refused{"qwen2", "layer_types", R"(["full_attention","sliding_attention"])", "sliding windows"},
                      Refused{"qwen3", "layer_types", R"("full_attention")", "sliding windows"},
                      Refused{"qwen3", "layer_types", R"(["full_attention"])", "expected num_hidden_layers entries"},
                      Refused{"qwen3", "attention_bias", "true", "biases are not supported"},
                      Refused{"qwen2", "rope_parameters", R"({"rope_type":"yarn","factor":4.0})", "\"llama3\" or"},
                      Refused{"qwen3", "rope_scaling", R"({"type":"dynamic","factor":4.0})", "\"llama3\" or"},
                      Refused{"qwen3", "head_dim", "7", "an even number"},
                      Refused{"qwen2", "attention_dropout", "0.1", "attention dropout is not supported"},
                      Refused{"qwen3", "num_key_value_heads", "5", "a divisor of num_attention_heads 32"},
                      Refused{"qwen2", "hidden_act", R"("gelu")", "\"silu\""}));

TEST(QwenConfigs, HaveThePublishedSizes) {
  const std::filesystem::path configs = TESSERA_CONFIGS;
  EXPECT_EQ(num_params(*read_model_config(find_model_config("qwen2.5-0.5b", configs))), 494032768);
  EXPECT_EQ(num_params(*read_model_config(find_model_config("qwen3-0.6b", configs))), 596049920);
}

}  // namespace
}  // namespace tessera::models
