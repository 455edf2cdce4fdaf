#include "tessera/models/unread_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>

#include "tessera/base/json_file.h"
#include "tessera/models/registry.h"
#include "tests/base/files.h"

namespace tessera::models {
namespace {
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> warnings(const json& changes) {
  json config = json::parse(R"({"model_type": "llama", "vocab_size": 131, "hidden_size": 60, "intermediate_size": 77,
    "num_hidden_layers": 3, "num_attention_heads": 6})");
  config.update(changes);
  const base::TempFolder folder;
  std::ofstream(folder / "config.json") << config;
  return model_config_warnings(folder / "config.json");
}

TEST(UnreadKeys, ThatResembleAnAbsentKeyAreNamed) {
  constexpr auto cases = std::to_array<std::pair<const char*, const char*>>({
      {"num_kv_heads", "num_key_value_heads"},
      {"num_key_value_head", "num_key_value_heads"},
      {"rope_tetha", "rope_theta"},
      {"rope_base", "rope_theta"},
      {"norm_eps", "rms_norm_eps"},
      {"rms_norm_epsilon", "rms_norm_eps"},
      {"max_seq_len", "max_position_embeddings"},
      {"tie_embeddings", "tie_word_embeddings"},
      {"head_size", "head_dim"},
  });
  for (const auto& [written, meant] : cases)
    EXPECT_THAT(warnings({{written, 1}}),
                ElementsAre(AllOf(HasSubstr("config.json: the key '" + std::string(written) + "' is not read"),
                                  HasSubstr("did you mean '" + std::string(meant) + "'"))))
        << written;
}

TEST(UnreadKeys, OfOtherMeaningsAreNotNamed) {
  EXPECT_THAT(warnings(json::object()), IsEmpty());
  EXPECT_THAT(warnings({{"num_kv_heads", 3}, {"num_key_value_heads", 3}}), IsEmpty()) << "the key is present";
  EXPECT_THAT(warnings({{"num_kv_heads", nullptr}}), IsEmpty());
  // Keys of published configurations that do not change the arithmetic.
  EXPECT_THAT(warnings({{"_name_or_path", "x"},
                        {"bos_token_id", 1},
                        {"eos_token_id", 2},
                        {"pad_token_id", 3},
                        {"pretraining_tp", 1},
                        {"torch_dtype", "bfloat16"},
                        {"dtype", "bfloat16"},
                        {"use_cache", true},
                        {"output_router_logits", false},
                        {"max_window_layers", 28},
                        {"auto_map", json::object()},
                        {"num_experts", 0},
                        {"max_length", 20},
                        {"top_k", 50},
                        {"id2label", json::object()},
                        {"transformers_version", "4.40.0"}}),
              IsEmpty());
}

TEST(UnreadKeys, OfFilesThatAreNoModelAreNotNamed) {
  const base::TempFolder folder;
  EXPECT_THAT(model_config_warnings(folder / "absent.json"), IsEmpty());
  std::ofstream(folder / "run.json") << R"({"config": {}, "model": {}})";
  EXPECT_THAT(model_config_warnings(folder / "run.json"), IsEmpty());
}

TEST(UnreadKeys, OfTheRepositorysModelsDoNotExist) {
  for (const auto& entry : std::filesystem::directory_iterator(TESSERA_CONFIGS)) {
    if (!std::filesystem::exists(entry.path() / "config.json")) continue;
    EXPECT_THAT(model_config_warnings(entry.path() / "config.json"), IsEmpty()) << entry.path();
  }
}

}  // namespace
}  // namespace tessera::models
