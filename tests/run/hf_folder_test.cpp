#include "tessera/run/convert/hf_folder.h"

#include "tests/run/convert_testing.h"

namespace tessera::run {
namespace {

using namespace testing;
using nlohmann::json;
using quant::DType;

// A Hugging Face folder of the odd Llama, exported by us; the tests then spoil it.
class HfFolderTest : public ::testing::Test {
 protected:
  void make(bool tied, std::int64_t max_shard_bytes = 1 << 30) {
    write_llama(root_ / "c", odd_llama(tied), DType::fp32);
    fs::remove_all(folder());
    convert(root_ / "c", folder(), {.dtype = std::nullopt, .max_shard_bytes = max_shard_bytes});
  }
  fs::path folder() const { return root_ / "hf"; }
  std::string fault() const {
    return input_error([&] { HfFolder opened(folder()); });
  }
  void edit(const std::string& name, const std::function<void(json&)>& change) const {
    json content = json::parse(slurp(folder() / name));
    change(content);
    spill(folder() / name, content.dump());
  }
  // Writes model.safetensors again with other tensors.
  void rewrite(const std::function<void(std::vector<checkpoint::SafetensorsTensor>&,
                                        std::map<std::string, std::string>&)>& change) {
    std::vector<checkpoint::SafetensorsTensor> entries;
    std::map<std::string, std::string> bytes = tensor_bytes(folder());
    {
      const checkpoint::SafetensorsFile file(folder() / "model.safetensors");
      for (const auto& [name, entry] : file.entries()) entries.push_back({name, DType::fp32, entry.dims});
    }
    change(entries, bytes);
    fs::remove(folder() / "model.safetensors");
    checkpoint::SafetensorsWriter writer(folder() / "model.safetensors", entries);
    for (const checkpoint::SafetensorsTensor& entry : entries)
      writer.write(bytes[entry.name].data(), static_cast<std::int64_t>(bytes[entry.name].size()));
    writer.finish();
  }
  TemporaryFolder root_;
};

bool says(const std::string& message, const char* text) {
  return message.find(text) != std::string::npos;
}

TEST_F(HfFolderTest, RefusesFoldersWithoutConfigOrWeights) {
  make(false);
  fs::rename(folder() / "model.safetensors", folder() / "model.bin");
  EXPECT_TRUE(says(fault(), "no weights"));
  fs::remove(folder() / "config.json");
  EXPECT_TRUE(says(fault(), "config.json"));
}

TEST_F(HfFolderTest, NamesWhatIsMissingMisshapenOrUnknown) {
  make(false);
  edit("config.json", [](json& config) { config["num_hidden_layers"] = 3; });
  EXPECT_TRUE(says(fault(), "'model.layers.2.input_layernorm.weight' is missing"));
  edit("config.json", [](json& config) { config["num_hidden_layers"] = 1; });
  EXPECT_TRUE(says(fault(), "is no part of a model"));
  edit("config.json", [](json& config) { config["num_hidden_layers"] = 2, config["vocab_size"] = 130; });
  EXPECT_TRUE(says(fault(), "'model.embed_tokens.weight': expected [130, 20], it is [131, 20]"));
}

TEST_F(HfFolderTest, RefusesTypesThatAreNoWeights) {
  make(false);
  rewrite([](auto& entries, auto&) {
    for (checkpoint::SafetensorsTensor& entry : entries)
      if (entry.name == "model.norm.weight") entry.dtype = DType::i32;
  });
  EXPECT_TRUE(says(fault(), "'model.norm.weight': expected a floating type, got I32"));
}

TEST_F(HfFolderTest, IgnoresStoredFrequencies) {
  make(false);
  rewrite([](auto& entries, auto& bytes) {
    entries.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", DType::fp32, {2}});
    bytes[entries.back().name] = std::string(8, 'x');
  });
  HfFolder opened(folder());
}

TEST_F(HfFolderTest, ATiedOutputLayerMustEqualTheEmbedding) {
  make(true);
  const auto add_output = [&](char change) {
    rewrite([&](auto& entries, auto& bytes) {
      std::erase_if(entries, [](const checkpoint::SafetensorsTensor& entry) { return entry.name == "lm_head.weight"; });
      entries.push_back({"lm_head.weight", DType::fp32, {131, 20}});
      bytes["lm_head.weight"] = bytes["model.embed_tokens.weight"];
      bytes["lm_head.weight"].back() ^= change;
    });
  };
  add_output(0);
  HfFolder opened(folder());
  add_output(1);
  EXPECT_TRUE(says(fault(), "differs from"));
}

TEST_F(HfFolderTest, ChecksTheIndexOfShards) {
  make(false, 5000);
  const std::string index = "model.safetensors.index.json";
  ASSERT_TRUE(fs::exists(folder() / index));
  const std::string good = slurp(folder() / index);
  HfFolder opened(folder());
  edit(index, [](json& content) { content["weight_map"].erase("model.norm.weight"); });
  EXPECT_TRUE(says(fault(), "'model.norm.weight' of"));
  spill(folder() / index, good);
  edit(index, [](json& content) { content["weight_map"]["model.norm.weight"] = "../x"; });
  EXPECT_TRUE(says(fault(), "name of a file in the same folder"));
  edit(index, [](json& content) { content["weight_map"]["model.norm.weight"] = "absent.safetensors"; });
  EXPECT_TRUE(says(fault(), "absent.safetensors"));
  edit(index, [](json& content) { content["weight_map"] = 3; });
  EXPECT_TRUE(says(fault(), "weight_map"));
}

// All finite values by the definition of the format: sign, 5 bits of exponent with bias 15, 10 bits of mantissa.
TEST(HalfPrecision, EveryBitPatternIsExact) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>((bits >> 10) & 31), mantissa = static_cast<int>(bits & 1023);
    const float got = half_to_float(static_cast<std::uint16_t>(bits));
    ASSERT_EQ(std::signbit(got), bits >= 0x8000) << bits;
    if (exponent == 31) {
      ASSERT_TRUE(mantissa == 0 ? std::isinf(got) : std::isnan(got)) << bits;
      continue;
    }
    const double expected = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    ASSERT_EQ(std::fabs(got), expected) << bits;
  }
}

}  // namespace
}  // namespace tessera::run
