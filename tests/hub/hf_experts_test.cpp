// Tests the forms in which a Hugging Face folder may store experts: a tensor for each matrix, or fused tensors.
#include "tessera/hub/convert/hf_format.h"
#include "tessera/hub/convert/hf_weights.h"
#include "tessera/models/decoder/decoder_layouts.h"
#include "tessera/quant/elementwise.h"
#include "tests/hub/convert_testing.h"

namespace tessera::hub {
namespace {

using namespace testing;
using models::ExpertTensors;
using quant::DType;

constexpr std::int64_t kExperts = 5, kHidden = 20;

// A stored tensor of a folder.
struct Stored {
  std::vector<std::int64_t> dims;
  std::string bytes;
};

class HfExperts : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    model_ = odd_decoder(GetParam(), false);
    width_ = models::decoder_of(*model_).experts->width;
    write_model(root_ / "c", *model_, DType::fp32);
    convert(root_ / "c", folder());
    const checkpoint::SafetensorsFile file(folder() / "model.safetensors");
    for (const auto& [name, bytes] : tensor_bytes(folder())) tensors_[name] = {file.entry(name).dims, bytes};
  }
  fs::path folder() const { return root_ / "hf"; }
  std::string fault() const {
    return input_error([&] { HfFolder opened(folder()); });
  }
  // Writes the folder again from tensors_. All tensors are fp32, except `bytes`, which has elements of one byte of the
  // type `type`.
  void write(const std::string& bytes = "", const std::string& type = "") const {
    std::vector<checkpoint::SafetensorsTensor> entries;
    for (const auto& [name, tensor] : tensors_) {
      entries.push_back({name, name == bytes ? DType::u8 : DType::fp32, tensor.dims});
      if (name == bytes) entries.back().stored_as = type;
    }
    fs::remove(folder() / "model.safetensors");
    checkpoint::SafetensorsWriter writer(folder() / "model.safetensors", entries);
    for (const auto& [name, tensor] : tensors_)
      writer.write(tensor.bytes.data(), static_cast<std::int64_t>(tensor.bytes.size()));
    writer.finish();
  }
  std::string separate(std::int64_t layer) const {
    return fmt::format("model.layers.{}.{}.", layer, is_mixtral() ? "block_sparse_moe" : "mlp");
  }
  bool is_mixtral() const { return GetParam() == std::string("mixtral"); }
  std::vector<const char*> matrices() const {
    return is_mixtral() ? std::vector{"w1", "w3", "w2"} : std::vector{"gate_proj", "up_proj", "down_proj"};
  }
  std::string take(const std::string& name) {
    const auto node = tensors_.extract(name);
    EXPECT_FALSE(node.empty()) << name;
    return node.empty() ? "" : node.mapped().bytes;
  }
  // Replaces the tensors of a layer's experts by fused tensors in `module`, as transformers 5 concatenates them: all
  // experts, and for each expert the gate rows before the up rows.
  void fuse(std::int64_t layer, const std::string& module) {
    std::string gate_up, down;
    for (std::int64_t e = 0; e < kExperts; ++e) {
      const std::string expert = fmt::format("{}experts.{}.", separate(layer), e);
      for (const int which : {0, 1}) gate_up += take(expert + matrices()[which] + ".weight");
      down += take(expert + matrices()[2] + ".weight");
    }
    const std::string fused = fmt::format("model.layers.{}.{}.", layer, module);
    tensors_[fused + "experts.gate_up_proj"] = {{kExperts, 2 * width_, kHidden}, gate_up};
    tensors_[fused + "experts.down_proj"] = {{kExperts, kHidden, width_}, down};
    auto router = tensors_.extract(separate(layer) + "gate.weight");
    router.key() = fused + "gate.weight";
    tensors_.insert(std::move(router));
  }
  void fuse_all(const std::string& module) {
    for (std::int64_t layer = 0; layer < 2; ++layer)
      if (models::decoder_of(*model_).is_sparse(layer)) fuse(layer, module);
  }
  std::map<std::string, std::string> hashes(const fs::path& checkpoint) const {
    const checkpoint::CheckpointReader reader(checkpoint);
    std::map<std::string, std::string> found;
    for (const LogicalTensor& tensor : logical_tensors(model_->hf_tensors()))
      found[tensor.name] = reader.hash(reader.tensor(tensor.name, checkpoint::Kind::weight));
    return found;
  }
  void expect_same_weights(const std::string& target) const {
    convert(folder(), root_ / target);
    EXPECT_EQ(hashes(root_ / target), hashes(root_ / "c"));
  }

  TemporaryFolder root_;
  models::ModelConfigPtr model_;
  std::int64_t width_ = 0;
  std::map<std::string, Stored> tensors_;
};

INSTANTIATE_TEST_SUITE_P(Models, HfExperts, ::testing::Values("mixtral", "qwen3_moe"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(HfExperts, AreWrittenAsSeparateTensors) {
  const std::vector<LogicalTensor> logical = logical_tensors(model_->hf_tensors());
  std::map<std::string, std::vector<float>> ours;
  for (std::size_t i = 0; i < logical.size(); ++i)
    ours[logical[i].name] = numbers_of(i, layout::matrix_shape(logical[i].dims).elements());
  const std::vector<float>&gate_up = ours.at("layers.0.experts.gate_up.weight"),
        &down = ours.at("layers.0.experts.down.weight"), &router = ours.at("layers.0.router.weight");
  const auto count = static_cast<std::size_t>(width_ * kHidden);
  EXPECT_EQ(tensors_.at(separate(0) + "gate.weight").bytes, bytes_of(router, 0, router.size()));
  for (std::size_t e = 0; e < kExperts; ++e) {
    const std::string expert = fmt::format("{}experts.{}.", separate(0), e);
    const Stored &gate = tensors_.at(expert + matrices()[0] + ".weight"),
                 &up = tensors_.at(expert + matrices()[1] + ".weight"),
                 &out = tensors_.at(expert + matrices()[2] + ".weight");
    EXPECT_EQ(gate.bytes, bytes_of(gate_up, 2 * e * count, count)) << e;
    EXPECT_EQ(up.bytes, bytes_of(gate_up, (2 * e + 1) * count, count)) << e;
    EXPECT_EQ(out.bytes, bytes_of(down, e * count, count)) << e;
    EXPECT_EQ(gate.dims, (std::vector<std::int64_t>{width_, kHidden}));
    EXPECT_EQ(out.dims, (std::vector<std::int64_t>{kHidden, width_}));
  }
  const bool has_dense_layer = tensors_.contains("model.layers.1.mlp.gate_proj.weight");
  EXPECT_EQ(has_dense_layer, !is_mixtral());
}

TEST_P(HfExperts, AreReadFromFusedTensors) {
  fuse_all("mlp");
  write();
  expect_same_weights("fused");
}

TEST_P(HfExperts, AreReadFromFusedTensorsInTheirOwnModule) {
  fuse_all(is_mixtral() ? "block_sparse_moe" : "mlp");
  write();
  expect_same_weights("fused");
}

// The parts that ranks read from a fused tensor, with strides and gaps between experts.
TEST_P(HfExperts, PartsOfFusedTensorsEqualTheWhole) {
  fuse_all("mlp");
  write();
  HfWeights weights(folder());
  const checkpoint::CheckpointReader reader(root_ / "c");
  const models::DecoderConfig& config = models::decoder_of(*model_);
  const auto check = [&](const std::string& name, const std::vector<std::int64_t>& dims, const layout::Layout& ranks) {
    for (const layout::LocalLayout& local : ranks.ranks) {
      std::vector<float> expected(static_cast<std::size_t>(local.size), -1), got(expected.size(), -2);
      reader.read({.name = name, .dims = dims, .local = local, .data = expected.data()});
      weights.read({.name = name, .dims = dims, .local = local, .data = got.data()});
      EXPECT_EQ(got, expected) << name;
    }
  };
  for (const auto& [etp, ep] : {std::pair{1, 1}, {3, 2}, {2, 3}, {1, 7}}) {
    check("layers.0.experts.gate_up.weight", {kExperts, 2 * width_, kHidden},
          models::experts_gate_up_layout(config, etp, ep));
    check("layers.0.experts.down.weight", {kExperts, kHidden, width_}, models::experts_down_layout(config, etp, ep));
  }
}

TEST_P(HfExperts, OfBothFormsAreRefused) {
  const auto separate_tensors = tensors_;
  const std::string first = fmt::format("{}experts.0.{}.weight", separate(0), matrices()[0]);
  fuse_all("mlp");
  tensors_[first] = separate_tensors.at(first);  // an expert is stored twice
  write();
  EXPECT_NE(fault().find("'" + first + "' is not part of a model"), std::string::npos) << fault();
  tensors_ = separate_tensors;
  tensors_["model.layers.0.mlp.experts.down_proj"] = {
      {kExperts, kHidden, width_}, std::string(static_cast<std::size_t>(kExperts * kHidden * width_ * 4), 'x')};
  write();
  EXPECT_NE(fault().find("'model.layers.0.mlp.experts.down_proj' is not part of a model"), std::string::npos);
}

// A model with two sparse layers.
class HfExpertsOfLayers : public HfExperts {};
INSTANTIATE_TEST_SUITE_P(Models, HfExpertsOfLayers, ::testing::Values("mixtral"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(HfExpertsOfLayers, InDifferentFormsAreRefused) {
  fuse(0, "mlp");
  write();
  EXPECT_NE(fault().find("'" + separate(0) + "gate.weight' is missing"), std::string::npos) << fault();
}

TEST_P(HfExperts, MissingOnesAreNamedInTheFormOfTheFolder) {
  const auto separate_tensors = tensors_;
  const std::string last = fmt::format("{}experts.4.{}.weight", separate(0), matrices()[2]);
  tensors_.erase(last);
  write();
  EXPECT_NE(fault().find("'" + last + "' is missing"), std::string::npos) << fault();
  const std::string second = separate(0) + "experts.1.";
  std::erase_if(tensors_, [&](const auto& tensor) {
    return tensor.first.find(".experts.") != std::string::npos && !tensor.first.starts_with(separate(0) + "experts.0.");
  });
  write();
  EXPECT_NE(fault().find("'" + second + matrices()[0] + ".weight' is missing"), std::string::npos) << fault();
  tensors_ = separate_tensors;
  fuse_all("mlp");
  tensors_.erase("model.layers.0.mlp.experts.down_proj");
  write();
  EXPECT_NE(fault().find("'model.layers.0.mlp.experts.down_proj' is missing"), std::string::npos) << fault();
}

TEST_P(HfExperts, OfOtherShapesAreRefused) {
  fuse_all("mlp");
  const std::string name = "model.layers.0.mlp.experts.gate_up_proj";
  tensors_.at(name).dims = {kExperts, kHidden, 2 * width_};  // transposed, as some other models store it
  write();
  EXPECT_NE(fault().find(fmt::format("'{}': expected [5, {}, 20], it is [5, 20, {}]", name, 2 * width_, 2 * width_)),
            std::string::npos)
      << fault();
}

// Each matrix of each expert is quantized alone. Routers are not quantized, and the folder lists them.
TEST_P(HfExperts, AreQuantizedByMatrix) {
  for (const quant::Format format : {quant::Format::fp8, quant::Format::fp8_block, quant::Format::mxfp8}) {
    const fs::path target = root_ / std::string(name_of(format));
    convert(root_ / "c", target, {.format = format});
    const auto stored = tensor_bytes(target);
    EXPECT_EQ(stored.count(separate(0) + "gate.weight_scale") + stored.count(separate(0) + "gate.weight_scale_inv"), 0);
    std::map<std::string, std::vector<quant::bfloat16>> values;
    for (const models::HfTensor& tensor : model_->hf_tensors()) {
      if (tensor.whole.empty()) continue;
      const std::string& bytes = tensors_.at(tensor.hf_name).bytes;
      std::vector<quant::bfloat16> rounded(bytes.size() / sizeof(float));
      quant::cast(bytes.data(), DType::fp32, rounded.data(), DType::bf16, std::ssize(rounded));
      const quant::Extent matrix{tensor.box.rows, tensor.box.cols};
      const auto expected = format_bytes(format, rounded, matrix);
      const auto parts = format_tensors(format, tensor.hf_name, matrix);
      for (std::size_t p = 0; p < parts.size(); ++p)
        EXPECT_EQ(stored.at(parts[p].name),
                  std::string(reinterpret_cast<const char*>(expected[p].data()), expected[p].size()))
            << parts[p].name;
      values[tensor.hf_name] = format_values(format, expected, matrix);
    }
    const HfFolder opened(target);
    for (const auto& [name, expected] : values) {
      std::vector<quant::bfloat16> read(expected.size());
      opened.read(name, 0, std::ssize(read), DType::bf16, read.data());
      EXPECT_EQ(std::memcmp(read.data(), expected.data(), read.size() * sizeof read[0]), 0) << name;
    }
    const json config = json::parse(slurp(target / "config.json"));
    if (format == quant::Format::fp8_block) {
      const json modules = config["quantization_config"]["modules_to_not_convert"];
      EXPECT_EQ(modules.front(), "lm_head");
      EXPECT_EQ(modules[1], separate(0) + "gate");
    }
  }
  EXPECT_THAT(hf_quant_config(quant::Format::nvfp4, {"a.gate"})["quantization"]["exclude_modules"],
              json({"lm_head", "a.gate"}));
}

TEST_P(HfExperts, FusedOnesInNumberFormatsAreRefused) {
  fuse_all("mlp");
  const std::string name = "model.layers.0.mlp.experts.gate_up_proj";
  for (const std::string suffix : {"_scale", "_scale_inv"}) {
    tensors_[name + suffix] = {{kExperts}, std::string(static_cast<std::size_t>(kExperts) * sizeof(float), '\0')};
    write();
    EXPECT_NE(fault().find("'" + name + "' is F32 with scales: expected F64, F32, F16 or BF16"), std::string::npos)
        << fault();
    tensors_.erase(name + suffix);
  }
  tensors_.at(name).bytes.resize(static_cast<std::size_t>(kExperts * 2 * width_ * kHidden));
  for (const std::string type : {"F8_E4M3", "U8"}) {
    write(name, type);
    EXPECT_NE(fault().find("'" + name + "' is " + type + ": expected F64, F32, F16 or BF16"), std::string::npos)
        << fault();
    EXPECT_NE(fault().find("save the experts as separate tensors"), std::string::npos) << fault();
  }
}

TEST_P(HfExperts, WithoutScalesAreRefused) {
  const std::string name = fmt::format("{}experts.1.{}.weight", separate(0), matrices()[1]);
  tensors_.at(name).bytes.resize(static_cast<std::size_t>(width_ * kHidden));
  write(name, "F8_E4M3");
  EXPECT_NE(fault().find("'" + name + "' is F8_E4M3: expected its scales"), std::string::npos) << fault();
}

// A router is stored in fp32 in a bf16 model and has no master.
TEST_P(HfExperts, RoutersStayWide) {
  convert(folder(), root_ / "bf16", {.dtype = DType::bf16});
  const checkpoint::CheckpointReader narrow(root_ / "bf16"), wide(root_ / "c");
  const checkpoint::StoredTensor& router = narrow.tensor("layers.0.router.weight", checkpoint::Kind::weight);
  EXPECT_EQ(router.dtype, DType::fp32);
  EXPECT_EQ(narrow.hash(router), wide.hash(wide.tensor("layers.0.router.weight", checkpoint::Kind::weight)));
  EXPECT_EQ(narrow.find("layers.0.router.weight", checkpoint::Kind::master), nullptr);
  EXPECT_EQ(narrow.tensor("layers.0.experts.down.weight", checkpoint::Kind::weight).dtype, DType::bf16);
  EXPECT_NE(narrow.find("layers.0.experts.down.weight", checkpoint::Kind::master), nullptr);
  convert(root_ / "bf16", root_ / "fp32", {.dtype = DType::fp32});
  EXPECT_EQ(tensor_bytes(root_ / "fp32"), tensor_bytes(folder()));
}

}  // namespace
}  // namespace tessera::hub
