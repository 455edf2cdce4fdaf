#include "tessera/hub/convert/convert.h"

#include "tests/hub/convert_testing.h"

namespace tessera::hub {
namespace {

using namespace testing;
using nlohmann::json;
using quant::DType;

struct Case {
  const char* type;  // tensors of the model
  bool tied;
  DType dtype;
};
class Convert : public ::testing::TestWithParam<Case> {};

// A conversion in both directions returns the same bits. A router is fp32 in a bf16 model, and in its folder if bf16
// does not represent it.
TEST_P(Convert, ARoundTripGivesTheSameBits) {
  const auto [type, tied, dtype] = GetParam();
  const TemporaryFolder root;
  const models::ModelConfigPtr model = odd_decoder(type, tied);
  write_model(root / "c", *model, dtype);
  for (const std::int64_t shard : {std::int64_t{1} << 30, std::int64_t{6000}}) {
    const std::string hf = "hf" + std::to_string(shard), back = "back" + std::to_string(shard);
    const ConvertReport there = convert(root / "c", root / hf, {.dtype = std::nullopt, .max_shard_bytes = shard});
    EXPECT_EQ(there["direction"], "export");
    EXPECT_EQ(there["dtype"], name_of(dtype));
    convert(root / hf, root / back);
    const checkpoint::CheckpointReader first(root / "c"), second(root / back);
    EXPECT_EQ(second.step(), 0);
    EXPECT_FALSE(second.has_state({checkpoint::Kind("exp_avg"), checkpoint::Kind("exp_avg_sq")}));
    EXPECT_EQ(second.has_master(), dtype == DType::bf16);
    EXPECT_EQ(second.state()["model"], model->to_json());
    for (const LogicalTensor& tensor : logical_tensors(model->hf_tensors())) {
      const checkpoint::StoredTensor& a = first.tensor(tensor.name, checkpoint::Kind::weight);
      const checkpoint::StoredTensor& b = second.tensor(tensor.name, checkpoint::Kind::weight);
      EXPECT_EQ(b.dtype, tensor.is_wide ? DType::fp32 : dtype);
      EXPECT_EQ(first.hash(a), second.hash(b)) << tensor.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Convert,
                         ::testing::Values(Case{"llama", false, DType::fp32}, Case{"llama", true, DType::fp32},
                                           Case{"llama", false, DType::bf16}, Case{"llama", true, DType::bf16},
                                           Case{"qwen2", false, DType::fp32}, Case{"qwen2", true, DType::bf16},
                                           Case{"qwen3", false, DType::fp32}, Case{"qwen3", true, DType::bf16},
                                           Case{"mixtral", false, DType::fp32}, Case{"mixtral", true, DType::bf16},
                                           Case{"qwen3_moe", true, DType::fp32}, Case{"qwen3_moe", false, DType::bf16}),
                         [](const auto& info) {
                           return std::string(info.param.type) + "_" + std::string(name_of(info.param.dtype)) +
                                  (info.param.tied ? "_tied" : "_untied");
                         });

TEST(ConvertExport, SplitsStackedWeightsByRows) {
  const TemporaryFolder root;
  const models::DecoderConfig config = odd_llama(false);
  write_llama(root / "c", config, DType::fp32);
  convert(root / "c", root / "hf");
  const auto tensors = tensor_bytes(root / "hf");
  const std::vector<LogicalTensor> logical = logical_of(config);
  std::map<std::string, std::vector<float>> ours;
  for (std::size_t i = 0; i < logical.size(); ++i)
    ours[logical[i].name] = numbers_of(i, layout::matrix_shape(logical[i].dims).elements());
  const auto& qkv = ours.at("layers.1.attention.qkv.weight");
  const std::size_t q = std::size_t{6} * 4 * 20, kv = std::size_t{3} * 4 * 20, gate = std::size_t{33} * 20;
  EXPECT_EQ(tensors.at("model.layers.1.self_attn.q_proj.weight"), bytes_of(qkv, 0, q));
  EXPECT_EQ(tensors.at("model.layers.1.self_attn.k_proj.weight"), bytes_of(qkv, q, kv));
  EXPECT_EQ(tensors.at("model.layers.1.self_attn.v_proj.weight"), bytes_of(qkv, q + kv, kv));
  const auto& gate_up = ours.at("layers.0.mlp.gate_up.weight");
  EXPECT_EQ(tensors.at("model.layers.0.mlp.gate_proj.weight"), bytes_of(gate_up, 0, gate));
  EXPECT_EQ(tensors.at("model.layers.0.mlp.up_proj.weight"), bytes_of(gate_up, gate, gate));
  EXPECT_EQ(tensors.at("model.norm.weight"), bytes_of(ours.at("norm.weight"), 0, 20));
  EXPECT_EQ(tensors.size(), 3u + 2u * 9u);

  const json written = json::parse(slurp(root / "hf/config.json"));
  EXPECT_EQ(models::decoder_of(*models::parse_model_config(written, "config.json")), config);
  EXPECT_EQ(written["torch_dtype"], "float32");
}

TEST(ConvertExport, RoundsARouterOnlyWithDtype) {
  const TemporaryFolder root;
  const models::ModelConfigPtr model = odd_decoder("mixtral", false);
  write_model(root / "c", *model, DType::bf16);
  convert(root / "c", root / "kept");
  convert(root / "c", root / "rounded", {.dtype = DType::bf16});
  convert(root / "rounded", root / "back");
  convert(root / "back", root / "again");
  const std::string name = "model.layers.0.block_sparse_moe.gate.weight";
  EXPECT_EQ(tensor_bytes(root / "kept").at(name).size(), 2 * tensor_bytes(root / "rounded").at(name).size());
  EXPECT_EQ(tensor_bytes(root / "rounded"), tensor_bytes(root / "again"));
}

TEST(ConvertExport, ANarrowerTypeIsRoundedAndAWiderOneComesFromTheMasters) {
  const TemporaryFolder root;
  write_llama(root / "wide", odd_llama(false), DType::fp32);
  write_llama(root / "narrow", odd_llama(false), DType::bf16);
  convert(root / "wide", root / "a", {.dtype = DType::bf16});
  const ConvertReport wider = convert(root / "narrow", root / "b", {.dtype = DType::fp32});
  convert(root / "narrow", root / "c", {.dtype = DType::bf16});
  const std::vector<float> embedding = numbers_of(0, std::int64_t{131} * 20);  // the values of tensor 0
  const std::string name = "model.embed_tokens.weight";
  EXPECT_EQ(tensor_bytes(root / "a").at(name), bytes_of(rounded(embedding), 0, embedding.size()));
  EXPECT_EQ(tensor_bytes(root / "b").at(name), bytes_of(embedding, 0, embedding.size()));
  EXPECT_EQ(tensor_bytes(root / "c").at(name), bytes_of(rounded(embedding), 0, embedding.size()));
  EXPECT_EQ(wider.at("format"), "bf16");  // no number format; the text shows the type
  EXPECT_NE(convert_text(wider).find("format     fp32\n"), std::string::npos);
}

TEST(ConvertExport, ShardsStayBelowTheLimitAndTheIndexNamesThem) {
  const TemporaryFolder root;
  write_llama(root / "c", odd_llama(false), DType::fp32);
  const std::int64_t limit = 12000;  // the embedding has 10480 bytes
  const ConvertReport report = convert(root / "c", root / "hf", {.dtype = std::nullopt, .max_shard_bytes = limit});
  const json index = json::parse(slurp(root / "hf/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], models::num_params(models::LlamaConfig(odd_llama(false))) * 4);
  std::map<std::string, std::int64_t> sizes;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    const checkpoint::SafetensorsFile file(root / "hf" / shard.get<std::string>());
    sizes[shard] += file.entry(name).bytes;
  }
  EXPECT_EQ(sizes.size(), report["files"].get<std::size_t>());
  EXPECT_TRUE(sizes.contains(fmt::format("model-00001-of-{:05}.safetensors", sizes.size())));
  EXPECT_GT(sizes.size(), 2u);
  for (const auto& [shard, bytes] : sizes) EXPECT_LE(bytes, limit) << shard;
}

TEST(ConvertImport, Bf16WeightsAreTheRoundedMasters) {
  const TemporaryFolder root;
  write_llama(root / "c", odd_llama(true), DType::fp32);
  convert(root / "c", root / "hf");
  convert(root / "hf", root / "back", {.dtype = DType::bf16});
  const checkpoint::CheckpointReader reader(root / "back");
  const std::vector<float> embedding = numbers_of(0, std::int64_t{131} * 20);
  const auto bits = rounded(embedding);
  EXPECT_EQ(reader.hash(reader.tensor("embedding.weight", checkpoint::Kind::master)),
            checkpoint::hash_of(embedding.data(), embedding.size() * 4));
  EXPECT_EQ(reader.hash(reader.tensor("embedding.weight", checkpoint::Kind::weight)),
            checkpoint::hash_of(bits.data(), bits.size() * 2));
}

TEST(ConvertImport, HalfPrecisionBecomesFp32) {
  const TemporaryFolder root;
  write_llama(root / "c", odd_llama(true), DType::bf16);
  convert(root / "c", root / "hf");
  // The same bytes under the name of another 16-bit type.
  std::string file = slurp(root / "hf/model.safetensors");
  const std::string from = "\"dtype\":\"BF16\"", to = "\"dtype\":\"F16\" ";
  for (std::size_t at = 0; (at = file.find(from, at)) != std::string::npos; at += to.size())
    file.replace(at, from.size(), to);
  spill(root / "hf/model.safetensors", file);
  convert(root / "hf", root / "back");
  const checkpoint::CheckpointReader reader(root / "back");
  EXPECT_FALSE(reader.has_master());
  std::vector<float> expected;
  for (const std::uint16_t bits : rounded(numbers_of(0, std::int64_t{131} * 20)))
    expected.push_back(half_to_float(bits));
  const checkpoint::StoredTensor& embedding = reader.tensor("embedding.weight", checkpoint::Kind::weight);
  EXPECT_EQ(embedding.dtype, DType::fp32);
  EXPECT_EQ(reader.hash(embedding), checkpoint::hash_of(expected.data(), expected.size() * 4));
}

TEST(ConvertErrors, RefusesBadSourcesAndTargets) {
  const TemporaryFolder root;
  write_llama(root / "c", odd_llama(false), DType::fp32);
  const auto fault = [&](const fs::path& from, const fs::path& to, const ConvertOptions& options = {}) {
    return input_error([&] { convert(from, to, options); });
  };
  EXPECT_NE(fault(root / "absent", root / "x").find("absent"), std::string::npos);
  EXPECT_NE(fault(root / "c", root / "c").find("exists"), std::string::npos);
  EXPECT_NE(fault(root / "c", root / "x", {.dtype = DType::i32}).find("i32"), std::string::npos);
  EXPECT_FALSE(fs::exists(root / "x"));
  fs::create_directory(root / "empty");
  convert(root / "c", root / "empty");
  EXPECT_TRUE(fs::exists(root / "empty/model.safetensors"));
}

TEST(ConvertErrors, RefusesSourcesOfBothForms) {
  const TemporaryFolder root;
  write_llama(root / "c", odd_llama(false), DType::fp32);
  convert(root / "c", root / "hf");
  const auto fault = [&] { return input_error([&] { convert(root / "hf", root / "x"); }); };
  const auto copy = [&](const std::string& where) {
    fs::create_directories((root / "hf" / where).parent_path());
    fs::copy(root / "c", root / "hf" / where);
  };
  copy("checkpoints/step-00000020");
  EXPECT_NE(fault().find("holds checkpoints/step-00000020 and a model in Hugging Face's form"), std::string::npos);
  fs::remove_all(root / "hf/checkpoints/step-00000020");
  convert(root / "hf", root / "empty-checkpoints");
  copy("step-00000020");
  EXPECT_NE(fault().find("holds step-00000020 and"), std::string::npos);
  fs::remove_all(root / "hf/step-00000020");
  fs::copy(root / "c", root / "hf", fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  EXPECT_NE(fault().find("holds manifest.json and"), std::string::npos);
  fs::remove(root / "hf/model.safetensors");
  EXPECT_EQ(convert(root / "hf", root / "exported")["direction"], "export");
}

// NaN and infinities are converted unchanged and counted by tensor.
class ConvertNonFinite : public ::testing::Test {
 protected:
  // A Hugging Face folder with these values in front of a tensor's.
  void put(const std::string& name, const std::vector<float>& values) {
    const fs::path path = root_ / "hf/model.safetensors";
    std::string text = slurp(path);
    const std::int64_t offset = checkpoint::SafetensorsFile(path).entry(name).offset;
    text.replace(static_cast<std::size_t>(offset), values.size() * sizeof(float), bytes_of(values, 0, values.size()));
    spill(path, text);
  }
  void SetUp() override {
    write_llama(root_ / "c", odd_llama(false), DType::fp32);
    convert(root_ / "c", root_ / "hf");
  }
  TemporaryFolder root_;
  const float nan_ = std::numeric_limits<float>::quiet_NaN(), infinity_ = std::numeric_limits<float>::infinity();
};

TEST_F(ConvertNonFinite, FiniteValuesAreNotReported) {
  const ConvertReport report = convert(root_ / "hf", root_ / "back");
  EXPECT_FALSE(report.contains("non_finite"));
  EXPECT_TRUE(convert_warnings(report).empty());
}

TEST_F(ConvertNonFinite, OtherValuesAreCountedByTensorInBothDirections) {
  put("model.layers.1.self_attn.k_proj.weight", {nan_, infinity_, 1, -infinity_, 1, nan_, nan_});
  put("model.norm.weight", {1, -infinity_});
  put("lm_head.weight", {3.4e38F});  // the value exceeds the range of bf16
  const json expected = {{{"tensor", "model.layers.1.self_attn.k_proj.weight"}, {"nan", 3}, {"infinite", 2}},
                         {{"tensor", "model.norm.weight"}, {"nan", 0}, {"infinite", 1}}};
  const ConvertReport there = convert(root_ / "hf", root_ / "back");
  EXPECT_EQ(there["non_finite"], expected);
  EXPECT_EQ(convert_warnings(there)[0],
            "tensor 'model.layers.1.self_attn.k_proj.weight': 3 values are NaN, 2 are infinite");
  EXPECT_EQ(convert_text(there).find("non_finite"), std::string::npos);
  EXPECT_EQ(convert(root_ / "back", root_ / "again")["non_finite"], expected);
  EXPECT_EQ(tensor_bytes(root_ / "again"), tensor_bytes(root_ / "hf"));
  // Rounding to bf16 may give infinities, and masters are not counted again.
  json rounded_too = expected;
  rounded_too.push_back({{"tensor", "lm_head.weight"}, {"nan", 0}, {"infinite", 1}});
  EXPECT_EQ(convert(root_ / "hf", root_ / "bf16", {.dtype = DType::bf16})["non_finite"], rounded_too);
  EXPECT_EQ(convert(root_ / "back", root_ / "rounded", {.dtype = DType::bf16})["non_finite"], rounded_too);
}

TEST(ConvertErrors, RefusesCheckpointsThatAreNotThisModel) {
  const TemporaryFolder root;
  const auto fault = [&](const json& state) {
    const std::vector<float> values(std::size_t{131} * 20);
    checkpoint::CheckpointContents contents{.step = 1, .state = state, .tensors = {}};
    contents.tensors.push_back(
        {"embedding.weight", checkpoint::Kind::weight, DType::fp32, {131, 20}, whole({131, 20}), values.data()});
    checkpoint::testing::on_ranks(1, [&](comm::Communicator& group) { write_checkpoint(root / "c", contents, group); });
    return input_error([&] { convert(root / "c", root / "x"); });
  };
  EXPECT_NE(fault(json::object()).find("'model'"), std::string::npos);
  EXPECT_NE(fault({{"model", 3}}).find("state.model"), std::string::npos);
  EXPECT_NE(fault({{"model", models::LlamaConfig(odd_llama(false)).to_json()}}).find("layers.0"), std::string::npos);
  json deep =
      models::LlamaConfig(odd_llama(false)).to_json();  // its list of weights is much longer than the checkpoint's
  deep["num_hidden_layers"] = 4096;
  EXPECT_NE(fault({{"model", deep}}).find("holds 1 weights, expected at least 4096"), std::string::npos);
}

TEST(ConvertErrors, ADamagedCheckpointIsNotExported) {
  const TemporaryFolder root;
  write_llama(root / "c", odd_llama(false), DType::fp32);
  const fs::path file = root / "c/part-00000.safetensors";
  std::string bytes = slurp(file);
  bytes.back() ^= 1;
  spill(file, bytes);
  EXPECT_NE(input_error([&] { convert(root / "c", root / "x"); }).find("damaged"), std::string::npos);
  EXPECT_FALSE(fs::exists(root / "x"));
}

}  // namespace
}  // namespace tessera::hub
