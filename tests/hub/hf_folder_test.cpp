#include "tessera/hub/convert/hf_folder.h"

#include "tests/hub/convert_testing.h"

namespace tessera::hub {
namespace {

using namespace testing;
using nlohmann::json;
using quant::DType;

// A Hugging Face folder of the odd Llama, exported by this program and damaged by the tests.
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

TEST_F(HfFolderTest, NamesMissingMisshapenAndUnknownTensors) {
  make(false);
  edit("config.json", [](json& config) { config["num_hidden_layers"] = 3; });
  EXPECT_TRUE(says(fault(), "'model.layers.2.input_layernorm.weight' is missing"));
  edit("config.json", [](json& config) { config["num_hidden_layers"] = 1; });
  EXPECT_TRUE(says(fault(), "is not part of a model"));
  edit("config.json", [](json& config) { config["num_hidden_layers"] = 2, config["vocab_size"] = 130; });
  EXPECT_TRUE(says(fault(), "'model.embed_tokens.weight': expected [130, 20], it is [131, 20]"));
}

// The list of this model's tensors would be much longer than the folder's.
TEST_F(HfFolderTest, RefusesAModelWithFarMoreTensorsThanTheFolder) {
  make(false);
  edit("config.json", [](json& config) { config["num_hidden_layers"] = 4096; });
  EXPECT_TRUE(says(fault(), "holds 21 tensors, expected at least 36864 for the 4096 layers of config.json"));
  edit("config.json", [](json& config) {
    config.erase("architectures");
    config.update({{"model_type", "mixtral"}, {"num_local_experts", 65536}, {"num_hidden_layers", 16}});
  });
  EXPECT_TRUE(says(fault(), "tensor 'model.layers.0.mlp.gate.weight' is missing"));  // of the shortest form
}

TEST_F(HfFolderTest, RefusesTypesThatAreNotFloating) {
  make(false);
  rewrite([](auto& entries, auto&) {
    for (checkpoint::SafetensorsTensor& entry : entries)
      if (entry.name == "model.norm.weight") entry.dtype = DType::i32;
  });
  EXPECT_TRUE(says(fault(), "'model.norm.weight': expected a floating type, got I32"));
}

// Returns the hash of each weight of the imported folder.
std::map<std::string, std::string> imported_hashes(const fs::path& hf_folder, const fs::path& target) {
  convert(hf_folder, target);
  const checkpoint::CheckpointReader reader(target);
  std::map<std::string, std::string> hashes;
  for (const checkpoint::StoredTensor& tensor : reader.manifest().tensors) hashes[tensor.name] = reader.hash(tensor);
  return hashes;
}

TEST_F(HfFolderTest, IgnoresStoredFrequencies) {
  make(false);
  const auto without = imported_hashes(folder(), root_ / "without");
  const auto add = [&](const std::string& name) {
    rewrite([&](auto& entries, auto& bytes) {
      entries.insert(entries.begin(), {name, DType::fp32, {2}});
      bytes[name] = std::string(8, 'x');
    });
  };
  add("model.layers.0.self_attn.rotary_emb.inv_freq");
  EXPECT_EQ(imported_hashes(folder(), root_ / "with"), without);
  add("model.layers.0.self_attn.rotary_emb.inv_freqs");
  EXPECT_TRUE(says(fault(), "'model.layers.0.self_attn.rotary_emb.inv_freqs' is not part of a model"));
}

// Writes the folder again with an output layer of this type and these bytes.
class TiedOutputLayer : public HfFolderTest {
 protected:
  void SetUp() override { make(true); }
  void add_output(DType dtype, const std::string& values, std::vector<std::int64_t> dims = {131, 20}) {
    rewrite([&](auto& entries, auto& bytes) {
      std::erase_if(entries, [](const checkpoint::SafetensorsTensor& entry) { return entry.name == "lm_head.weight"; });
      entries.push_back({"lm_head.weight", dtype, std::move(dims)});
      bytes["lm_head.weight"] = values;
    });
  }
  // The embedding's values in another type.
  template <typename T>
  std::string embedding_as(const std::function<T(float)>& cast) const {
    const std::string bytes = tensor_bytes(folder()).at("model.embed_tokens.weight");
    std::vector<T> values;
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, bytes.data() + at, sizeof value);
      values.push_back(cast(value));
    }
    return bytes_of(values, 0, values.size());
  }
};

TEST_F(TiedOutputLayer, MustEqualTheEmbedding) {
  const auto without = imported_hashes(folder(), root_ / "without");
  std::string values = tensor_bytes(folder()).at("model.embed_tokens.weight");
  add_output(DType::fp32, values);
  EXPECT_EQ(imported_hashes(folder(), root_ / "with"), without);
  float last = 0;
  std::memcpy(&last, values.data() + values.size() - sizeof last, sizeof last);
  const float other = 1.5F;
  std::memcpy(values.data() + values.size() - sizeof other, &other, sizeof other);
  add_output(DType::fp32, values);
  const std::string expected = fmt::format(
      "'lm_head.weight' (F32) differs from 'model.embed_tokens.weight' (F32): element 2619 is 1.5, expected {}",
      static_cast<double>(last));
  EXPECT_TRUE(says(fault(), expected.c_str())) << fault();
  add_output(DType::fp32, values, {20, 131});
  EXPECT_TRUE(says(fault(), "'lm_head.weight': expected [131, 20], it is [20, 131]"));
  add_output(DType::i32, values);
  EXPECT_TRUE(says(fault(), "'lm_head.weight': expected a floating type, got I32"));
}

TEST_F(TiedOutputLayer, MayHaveAnotherTypeWithEqualValues) {
  const auto without = imported_hashes(folder(), root_ / "without");
  add_output(DType::fp64, embedding_as<double>([](float value) { return static_cast<double>(value); }));
  EXPECT_EQ(imported_hashes(folder(), root_ / "with"), without);
  // Values with a full mantissa are not equal to themselves in bf16.
  add_output(DType::bf16, embedding_as<std::uint16_t>([](float value) { return quant::bfloat16(value).bits; }));
  EXPECT_TRUE(says(fault(), "'lm_head.weight' (BF16) differs from 'model.embed_tokens.weight' (F32): element 0 is"));
}

class HfShards : public HfFolderTest {
 protected:
  static constexpr const char* kIndex = "model.safetensors.index.json";
  void SetUp() override {
    make(false, 5000);
    good_ = json::parse(slurp(folder() / kIndex));
    shard_ = good_["weight_map"]["model.norm.weight"];
  }
  // Returns the error of the folder if the index names another file for a tensor.
  std::string fault_with(const std::string& tensor, const json& file) const {
    json index = good_;
    index["weight_map"][tensor] = file;
    spill(folder() / kIndex, index.dump());
    std::string message = fault();
    spill(folder() / kIndex, good_.dump());
    return message;
  }
  json good_;
  std::string shard_;  // the shard that holds model.norm.weight
};

TEST_F(HfShards, AreOpenedByTheIndex) {
  EXPECT_EQ(imported_hashes(folder(), root_ / "back").size(), logical_of(odd_llama(false)).size());
  EXPECT_TRUE(says(fault_with("model.norm.weight", "../x"), "name of a file in the same folder"));
  EXPECT_TRUE(says(fault_with("model.norm.weight", "absent.safetensors"),
                   "'model.norm.weight': names absent.safetensors, which is not in the folder"));
  const std::string other = good_["weight_map"]["model.embed_tokens.weight"];
  EXPECT_TRUE(says(fault_with("model.norm.weight", other),
                   ("'model.norm.weight': names " + other + ", which does not hold it").c_str()));
  edit(kIndex, [](json& content) { content["weight_map"].erase("model.norm.weight"); });
  EXPECT_TRUE(says(fault(), "'model.norm.weight' of"));
  edit(kIndex, [](json& content) { content["weight_map"] = 3; });
  EXPECT_TRUE(says(fault(), "weight_map"));
  std::string twice = good_.dump();
  twice.insert(twice.find("\"weight_map\":{") + 14, "\"model.norm.weight\":\"" + shard_ + "\",");
  spill(folder() / kIndex, twice);
  EXPECT_TRUE(says(fault(), "\"model.norm.weight\" is given twice"));
}

TEST_F(HfShards, BesideASingleFileAreRefused) {
  fs::copy_file(folder() / shard_, folder() / "model.safetensors");
  EXPECT_TRUE(says(fault(), "holds model.safetensors and model.safetensors.index.json, which names model-000"));
  fs::remove(folder() / kIndex);
  EXPECT_TRUE(says(fault(), "model-00001-of-"));
  EXPECT_TRUE(says(fault(), "no index names"));
}

TEST_F(HfShards, AnIndexOfTheSingleFileIsRead) {
  make(false);
  const auto without = imported_hashes(folder(), root_ / "without");
  json index;
  for (const auto& [name, bytes] : tensor_bytes(folder())) index["weight_map"][name] = "model.safetensors";
  spill(folder() / kIndex, index.dump());
  EXPECT_EQ(imported_hashes(folder(), root_ / "with"), without);
}

TEST_F(HfShards, OfAnotherModelAreRefused) {
  fs::copy_file(folder() / shard_, folder() / "model-00009-of-00009.safetensors");
  EXPECT_TRUE(says(fault(), "holds model-00009-of-00009.safetensors, which the index does not name"));
  fs::remove(folder() / kIndex);
  EXPECT_TRUE(says(fault(), "no weights"));
}

TEST_F(HfShards, HoldEachTensorOnce) {
  // Adds a shard with a tensor that another shard also contains.
  const std::string values = tensor_bytes(folder()).at("model.norm.weight");
  std::vector<checkpoint::SafetensorsTensor> entries;
  std::string bytes;
  const std::string other = good_["weight_map"]["lm_head.weight"];
  {
    const checkpoint::SafetensorsFile file(folder() / other);
    ASSERT_FALSE(file.entries().contains("model.norm.weight"));
    for (const auto& [name, entry] : file.entries()) {
      entries.push_back({name, DType::fp32, entry.dims});
      bytes += tensor_bytes(folder()).at(name);
    }
  }
  entries.push_back({"model.norm.weight", DType::fp32, {20}});
  fs::remove(folder() / other);
  checkpoint::SafetensorsWriter writer(folder() / other, entries);
  writer.write(bytes.data(), static_cast<std::int64_t>(bytes.size()));
  writer.write(values.data(), static_cast<std::int64_t>(values.size()));
  writer.finish();
  EXPECT_TRUE(says(fault(), ("'model.norm.weight' is in " + shard_ + " and in " + other).c_str())) << fault();
}

TEST_F(HfFolderTest, RefusesTwoDescriptionsOfFormats) {
  make(false);
  edit("config.json",
       [](json& config) { config["quantization_config"] = quantization_config(quant::Format::fp8_block); });
  spill(folder() / "hf_quant_config.json", hf_quant_config(quant::Format::nvfp4).dump());
  EXPECT_TRUE(says(fault(), "config.json: has quantization_config, and hf_quant_config.json exists too"));
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
}  // namespace tessera::hub
