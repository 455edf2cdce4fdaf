#include "tessera/models/architectures/llama.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tessera/base/error.h"
#include "tessera/models/registry.h"

namespace tessera::models {
namespace {
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

json small() {
  return json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 131,
    "hidden_size": 60, "intermediate_size": 77, "num_hidden_layers": 3, "num_attention_heads": 6,
    "num_key_value_heads": 3, "max_position_embeddings": 256, "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
    "initializer_range": 0.01, "tie_word_embeddings": true, "hidden_act": "silu", "torch_dtype": "bfloat16"})");
}

DecoderConfig parse(const json& config, const std::string& where) {
  return decoder_of(*parse_model_config(config, where));
}

TEST(LlamaConfig, ReadsEveryField) {
  const DecoderConfig expected{.vocab_size = 131,
                               .hidden_size = 60,
                               .intermediate_size = 77,
                               .num_layers = 3,
                               .num_heads = 6,
                               .num_kv_heads = 3,
                               .head_dim = 10,
                               .max_position_embeddings = 256,
                               .rope_theta = 500000.0,
                               .rope_scaling = std::nullopt,
                               .rms_norm_eps = 1e-5,
                               .initializer_range = 0.01,
                               .tie_word_embeddings = true};
  EXPECT_EQ(parse(small(), "f"), expected);
}

TEST(LlamaConfig, AbsentAndNullFieldsTakeTheDefaults) {
  const auto config =
      parse(json::parse(R"({"model_type": "llama", "vocab_size": 10, "hidden_size": 16, "intermediate_size": 8,
                      "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": null,
                      "head_dim": null, "rope_scaling": null})"),
            "f");
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.initializer_range, 0.02);
  EXPECT_EQ(config.max_position_embeddings, 2048);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_FALSE(config.rope_scaling);
}

TEST(LlamaConfig, HeadDimMayDifferFromHiddenOverHeads) {
  json file = small();
  file["head_dim"] = 32;
  file["num_attention_heads"] = 7;
  file["num_key_value_heads"] = 7;
  EXPECT_EQ(parse(file, "f").head_dim, 32);
}

TEST(LlamaConfig, ReadsLlama3ScalingInBothPlaces) {
  const json scaling = {{"rope_type", "llama3"},
                        {"factor", 32.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 4096}};
  const RopeStretch expected{.factor = 32, .original_max_position_embeddings = 4096};
  json older = small();
  older["rope_scaling"] = scaling;
  EXPECT_EQ(parse(older, "f").rope_scaling, expected);
  older["rope_scaling"].erase("rope_type");
  older["rope_scaling"]["type"] = "llama3";
  EXPECT_EQ(parse(older, "f").rope_scaling, expected);
  json newer = small();
  newer.erase("rope_theta");
  newer["rope_parameters"] = scaling;
  newer["rope_parameters"]["rope_theta"] = 1234.0;
  EXPECT_EQ(parse(newer, "f").rope_scaling, expected);
  EXPECT_EQ(parse(newer, "f").rope_theta, 1234.0);
  newer["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 77.0}};
  EXPECT_FALSE(parse(newer, "f").rope_scaling);
  EXPECT_EQ(parse(newer, "f").rope_theta, 77.0);
  json both = older;
  both["rope_parameters"] = scaling;
  both["rope_parameters"]["rope_theta"] = both["rope_theta"];
  EXPECT_EQ(parse(both, "f").rope_scaling, expected);
  EXPECT_EQ(parse(both, "f").rope_theta, 500000.0);
}

TEST(LlamaConfig, RoundTripsThroughHuggingFaceForm) {
  DecoderConfig config = parse(small(), "f");
  EXPECT_EQ(parse(LlamaConfig(config).to_json(), "f"), config);
  config.rope_scaling = RopeStretch{.factor = 2.5, .original_max_position_embeddings = 99};
  config.head_dim = 14;
  EXPECT_EQ(parse(json::parse(LlamaConfig(config).to_json().dump()), "f"), config);
}

// A configuration with RoPE scaling as in Llama 3.
json stretched() {
  json file = small();
  file["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 8.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 4096}};
  return file;
}

struct BadField {
  const char* pointer;  // JSON pointer of the replaced value
  const char* value;    // JSON, or "" to remove it
  const char* field;    // as named in the message
};
class LlamaConfigErrors : public ::testing::TestWithParam<BadField> {};

TEST_P(LlamaConfigErrors, NameFileFieldAndValue) {
  const BadField& bad = GetParam();
  json file = stretched();
  const json::json_pointer at(bad.pointer);
  if (std::string(bad.value).empty())
    file[at.parent_pointer()].erase(at.back());
  else
    file[at] = json::parse(bad.value);
  try {
    parse(file, "some/config.json");
    FAIL() << "accepted " << file;
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("some/config.json"));
    EXPECT_THAT(error.what(), HasSubstr(fmt::format("'{}'", bad.field)));
    EXPECT_THAT(error.what(), HasSubstr(std::string(bad.value).empty() ? "missing" : bad.value));
    EXPECT_THAT(error.what(), HasSubstr("expected"));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, LlamaConfigErrors,
    ::testing::Values(
        BadField{"/architectures", R"(["GPT2LMHeadModel"])", "architectures"},
        BadField{"/model_type", R"("gpt2")", "model_type"},
        BadField{"/architectures", R"("LlamaForCausalLM")", "architectures"}, BadField{"/vocab_size", "", "vocab_size"},
        BadField{"/hidden_size", "", "hidden_size"}, BadField{"/intermediate_size", "", "intermediate_size"},
        BadField{"/num_hidden_layers", "", "num_hidden_layers"},
        BadField{"/num_attention_heads", "", "num_attention_heads"}, BadField{"/vocab_size", R"("131")", "vocab_size"},
        BadField{"/vocab_size", "131.5", "vocab_size"}, BadField{"/vocab_size", "0", "vocab_size"},
        BadField{"/vocab_size", "-4", "vocab_size"}, BadField{"/vocab_size", "18446744073709551615", "vocab_size"},
        BadField{"/vocab_size", "null", "vocab_size"}, BadField{"/num_key_value_heads", "4", "num_key_value_heads"},
        BadField{"/num_key_value_heads", "12", "num_key_value_heads"}, BadField{"/head_dim", "7", "head_dim"},
        BadField{"/head_dim", "true", "head_dim"}, BadField{"/rope_theta", "-1.0", "rope_theta"},
        BadField{"/rms_norm_eps", "0", "rms_norm_eps"}, BadField{"/rms_norm_eps", R"("1e-5")", "rms_norm_eps"},
        BadField{"/tie_word_embeddings", "1", "tie_word_embeddings"},
        BadField{"/attention_bias", "true", "attention_bias"}, BadField{"/mlp_bias", "true", "mlp_bias"},
        BadField{"/hidden_act", R"("gelu")", "hidden_act"}, BadField{"/attention_dropout", "0.1", "attention_dropout"},
        BadField{"/partial_rotary_factor", "0.5", "partial_rotary_factor"},
        BadField{"/rope_scaling/partial_rotary_factor", "0.5", "rope_scaling.partial_rotary_factor"},
        BadField{"/quantization_config", R"({"bits":4})", "quantization_config"},
        BadField{"/rope_scaling", "8", "rope_scaling"},
        BadField{"/rope_scaling/rope_type", R"("yarn")", "rope_scaling.rope_type"},
        BadField{"/rope_scaling/rope_type", "", "rope_scaling.rope_type"},
        BadField{"/rope_scaling/factor", "", "rope_scaling.factor"},
        BadField{"/rope_scaling/factor", R"("8")", "rope_scaling.factor"},
        BadField{"/rope_scaling/high_freq_factor", "0.5", "rope_scaling.high_freq_factor"},
        BadField{"/rope_scaling/original_max_position_embeddings", "0.5",
                 "rope_scaling.original_max_position_embeddings"}));

TEST(LlamaConfig, RefusesContradictoryRope) {
  json file = stretched();
  json other_factor = file["rope_scaling"], other_theta = file["rope_scaling"];
  other_factor["factor"] = 7.0;
  other_theta["rope_theta"] = 3.0;
  const auto expect_refused = [&](const char* name, const json& value, const char* field) {
    json bad = file;
    bad[name] = value;
    try {
      parse(bad, "f");
      ADD_FAILURE() << "accepted " << bad;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(std::string("'") + field + "'"));
    }
  };
  expect_refused("rope_scaling", other_theta, "rope_scaling.rope_theta");
  expect_refused("rope_parameters", {{"rope_theta", 3.0}}, "rope_parameters.rope_theta");
  expect_refused("rope_parameters", {{"rope_theta", file["rope_theta"]}, {"factor", 7.0}}, "rope_parameters.rope_type");
  expect_refused("rope_parameters", {{"rope_type", "default"}}, "rope_parameters");
  expect_refused("rope_parameters", other_factor, "rope_parameters");
}

TEST(LlamaConfig, RefusesAMissingHeadDimThatHasNoDefault) {
  json file = small();
  file["num_attention_heads"] = 7;
  file["num_key_value_heads"] = 7;
  try {
    parse(file, "f");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'head_dim' is missing"));
  }
}

TEST(LlamaConfig, RefusesASizeThatOverflows) {
  json file = small();
  file.update({{"hidden_size", 1 << 20}, {"intermediate_size", 1 << 20}, {"num_hidden_layers", 1000}, {"head_dim", 2}});
  EXPECT_THAT(
      [&] { parse(file, "f"); },
      ThrowsMessage<InputError>(HasSubstr("f: the model would have 3.3e+15 parameters, expected at most 1e+15")));
}

// Each of these sizes determines a list, an allocation or the length of a loop.
TEST(LlamaConfig, RefusesSizesFarAboveThoseOfPublishedModels) {
  for (const auto& [name, most] : {std::pair{"vocab_size", 1 << 24},
                                   {"hidden_size", 1 << 20},
                                   {"intermediate_size", 1 << 20},
                                   {"num_hidden_layers", 4096},
                                   {"num_attention_heads", 1 << 20},
                                   {"head_dim", 1 << 20}})
    for (const std::int64_t value : {std::int64_t{most} + 1, std::int64_t{300'000'000}, std::int64_t{2'147'483'647}}) {
      json file = small();
      file[name] = value;
      EXPECT_THAT([&] { parse(file, "f"); },
                  ThrowsMessage<InputError>(HasSubstr(
                      fmt::format("f: field '{}' is {}, expected an integer from 1 to {}", name, value, most))));
    }
  json file = small();
  file.update({{"num_attention_heads", 1 << 12}, {"num_key_value_heads", 1 << 12}, {"head_dim", 1 << 10}});
  EXPECT_THAT([&] { parse(file, "f"); },
              ThrowsMessage<InputError>(HasSubstr("field 'num_attention_heads' is 4096, expected at most 1024")));
}

TEST(LlamaConfig, RefusesContradictoryFields) {
  const auto refused = [](const json& config) {
    try {
      parse_model_config(config, "f");
      return std::string();
    } catch (const InputError& error) {
      return std::string(error.what());
    }
  };
  json config = small();
  config.erase("model_type");
  config["architectures"] = {"LlamaForCausalLM", "Qwen2ForCausalLM"};
  EXPECT_THAT(refused(config), HasSubstr("architectures"));
  config["architectures"] = {"LlamaForCausalLM", "LlamaForSequenceClassification"};
  EXPECT_EQ(refused(config), "");
  config = small();
  config["rope_scaling"] = {{"type", "linear"}, {"rope_type", "default"}};
  EXPECT_THAT(refused(config), HasSubstr("rope_scaling.type"));
  config["rope_scaling"] = {{"type", "default"}, {"rope_type", "default"}};
  EXPECT_EQ(refused(config), "");
}

TEST(LlamaConfig, CountsParameters) {
  // By hand: embedding 131*60 = 7860; a layer: q 60*60, k and v 60*30 each, output 60*60, gate, up and down 3*60*77,
  // two norms 2*60 = 10800 + 13860 + 120 = 24780; three layers and the last norm 60.
  EXPECT_EQ(num_params(*parse_model_config(small(), "f")), 7860 + 3 * 24780 + 60);
  json untied = small();
  untied["tie_word_embeddings"] = false;
  EXPECT_EQ(num_params(*parse_model_config(untied, "f")), 2 * 7860 + 3 * 24780 + 60);
  const json llama3 = {{"model_type", "llama"},      {"vocab_size", 128256},    {"hidden_size", 4096},
                       {"intermediate_size", 14336}, {"num_hidden_layers", 32}, {"num_attention_heads", 32},
                       {"num_key_value_heads", 8}};
  EXPECT_EQ(num_params(*parse_model_config(llama3, "f")), 8030261248);  // the published 8B model
}

class ModelFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::temp_directory_path() / fmt::format("tessera-llama-config-{}", ::getpid());
    std::filesystem::create_directories(root_ / "configs" / "folder");
    write(root_ / "configs" / "flat.json", small().dump());
    write(root_ / "configs" / "folder" / "config.json", small().dump());
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  static void write(const std::filesystem::path& path, const std::string& text) { std::ofstream(path) << text; }
  std::filesystem::path root_;
};

TEST_F(ModelFiles, AreFoundByNameAndByPath) {
  const auto configs = root_ / "configs";
  EXPECT_EQ(find_model_config("flat", configs), configs / "flat.json");
  EXPECT_EQ(find_model_config("folder", configs), configs / "folder" / "config.json");
  EXPECT_EQ(find_model_config((configs / "folder").string(), "nowhere"), configs / "folder" / "config.json");
  EXPECT_EQ(find_model_config((configs / "flat.json").string(), "nowhere"), configs / "flat.json");
  EXPECT_EQ(decoder_of(*read_model_config(configs / "flat.json")), parse(small(), "f"));
}

TEST_F(ModelFiles, AnAmbiguousNameListsBothFiles) {
  const auto configs = root_ / "configs";
  std::filesystem::create_directories(configs / "flat");
  write(configs / "flat" / "config.json", small().dump());
  try {
    find_model_config("flat", configs);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr((configs / "flat.json").string()));
    EXPECT_THAT(error.what(), HasSubstr((configs / "flat" / "config.json").string()));
  }
  std::filesystem::remove(configs / "flat.json");
  std::filesystem::create_hard_link(configs / "flat" / "config.json", configs / "flat.json");
  EXPECT_EQ(find_model_config("flat", configs), configs / "flat.json");  // the same file twice
}

TEST_F(ModelFiles, ADeviceOrAPipeIsNotAModel) {
  const auto folder = root_ / "configs" / "device";
  std::filesystem::create_directories(folder);
  std::filesystem::create_symlink("/dev/zero", folder / "config.json");
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const auto& path : {folder / "config.json", folder / "pipe"}) {
    try {
      find_model_config(path.string(), root_ / "configs");
      FAIL() << path;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr("'" + path.string() + "' not found: expected a config.json"));
    }
  }
}

TEST_F(ModelFiles, AMissingNameListsTheKnownNames) {
  try {
    find_model_config("flta", root_ / "configs");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'flta'"));
    EXPECT_THAT(error.what(), HasSubstr("flat, folder"));
  }
}

TEST_F(ModelFiles, InvalidJsonIsNamed) {
  const auto path = root_ / "bad.json";
  for (const char* text : {"", "{", "{\"vocab_size\": 1,}", "[1", "\x80\xff", "{\"a\": 1, \"a\": 2}", "[]", "3"}) {
    write(path, text);
    try {
      read_model_config(path);
      FAIL() << text;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr("bad.json"));
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
  EXPECT_THAT([&] { read_model_config(root_ / "absent.json"); },
              ThrowsMessage<InputError>(HasSubstr("absent.json: cannot be read: ")));
  EXPECT_THAT([&] { read_model_config(root_); },
              ThrowsMessage<InputError>(HasSubstr("is a folder, expected a JSON file")));
}

}  // namespace
}  // namespace tessera::models
