#include "tessera/models/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tessera/base/error.h"
#include "tessera/layout/box.h"
#include "tessera/models/decoder/decoder_model.h"

namespace tessera::models {
namespace {
using nlohmann::json;
using ::testing::HasSubstr;

json small(std::string_view model_type) {
  json file = json::parse(R"({"vocab_size": 131, "hidden_size": 60, "intermediate_size": 77, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 3, "max_position_embeddings": 256, "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5, "initializer_range": 0.01, "tie_word_embeddings": true, "hidden_act": "silu"})");
  file["model_type"] = model_type;
  if (model_type == "dots1")
    file.update({{"n_routed_experts", 6}, {"num_experts_per_tok", 2}, {"n_shared_experts", 1}});
  return file;
}

std::string fault(const json& file) {
  try {
    parse_model_config(file, "some/config.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

class EachArchitecture : public ::testing::TestWithParam<Architecture> {};
INSTANTIATE_TEST_SUITE_P(Registry, EachArchitecture,
                         ::testing::ValuesIn(architectures().begin(), architectures().end()),
                         [](const auto& info) { return std::string(info.param.model_type); });

TEST_P(EachArchitecture, IsChosenByTypeOrByClass) {
  json file = small(GetParam().model_type);
  const json expected = parse_model_config(file, "f")->to_json();
  EXPECT_EQ(expected["model_type"], GetParam().model_type);
  file["architectures"] = {GetParam().class_name};
  EXPECT_EQ(parse_model_config(file, "f")->to_json(), expected);
  file.erase("model_type");
  EXPECT_EQ(parse_model_config(file, "f")->to_json(), expected);
}

TEST_P(EachArchitecture, RefusesTheClassOfAnotherType) {
  json file = small(GetParam().model_type);
  file["architectures"] = {"OtherForCausalLM"};
  EXPECT_THAT(fault(file), HasSubstr("some/config.json: field 'architectures' is [\"OtherForCausalLM\"], expected"));
}

TEST_P(EachArchitecture, RoundTripsThroughHuggingFaceForm) {
  json file = small(GetParam().model_type);
  file["head_dim"] = 14;
  file["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 2.5},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 99}};
  const ModelConfigPtr config = parse_model_config(file, "f");
  const ModelConfigPtr again = parse_model_config(json::parse(config->to_json().dump()), "f");
  EXPECT_EQ(decoder_of(*again), decoder_of(*config));
  EXPECT_EQ(again->to_json(), config->to_json());
}

// Checks that the tensors of a folder together give each parameter.
TEST_P(EachArchitecture, HasANameForEveryParameter) {
  for (const bool tied : {false, true}) {
    json file = small(GetParam().model_type);
    file["tie_word_embeddings"] = tied;
    const ModelConfigPtr config = parse_model_config(file, "f");
    const std::vector<LogicalTensor> logical = logical_tensors(config->hf_tensors());
    const std::vector<shard::ParameterSpec> specs = config->parameters({.tp_size = 4});
    ASSERT_EQ(logical.size(), specs.size());
    std::int64_t elements = 0;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      EXPECT_EQ(logical[i].name, specs[i].name);
      EXPECT_EQ(logical[i].dims, specs[i].dims) << specs[i].name;
      elements += layout::matrix_shape(specs[i].dims).elements();
    }
    EXPECT_EQ(num_params(*config), elements);
    EXPECT_EQ(config->hf_aliases().size(), tied ? 1u : 0u);
  }
}

TEST(Registry, ErrorsListTheKnownArchitectures) {
  json file = small("gpt2");
  std::string known;
  for (const Architecture& architecture : architectures())
    EXPECT_THAT(fault(file), HasSubstr(fmt::format("\"{}\" ({})", architecture.model_type, architecture.class_name)));
  EXPECT_THAT(fault(file), HasSubstr("'model_type' is \"gpt2\""));
  file.erase("model_type");
  EXPECT_THAT(fault(file), HasSubstr("'model_type' is missing"));
  file["architectures"] = {"GPT2LMHeadModel"};
  EXPECT_THAT(fault(file), HasSubstr("'architectures' is [\"GPT2LMHeadModel\"]"));
  EXPECT_THAT(fault(json::array()), HasSubstr("expected a JSON object"));
}

}  // namespace
}  // namespace tessera::models
