// Tests Hugging Face folders in number formats: names, shapes and bytes of exports, and values of imports.
#include "tessera/hub/convert/hf_format.h"

#include "tests/hub/convert_testing.h"

namespace tessera::hub {
namespace {

using namespace testing;
using nlohmann::json;
using quant::DType;
using quant::Format;

// 20 columns, 33 and 24 rows: edge tiles in every format.
models::DecoderConfig even_llama() {
  models::DecoderConfig config = odd_llama(false);
  config.intermediate_size = 34;
  return config;
}

class HfFormats : public ::testing::TestWithParam<Format> {
 protected:
  void SetUp() override { write_llama(root_ / "c", even_llama(), DType::bf16); }
  fs::path folder() const { return root_ / "hf"; }
  void make() const { convert(root_ / "c", folder(), {.format = GetParam(), .max_shard_bytes = 6000}); }
  std::string fault() const {
    return input_error([&] { HfFolder opened(folder()); });
  }
  TemporaryFolder root_;
};

std::vector<quant::bfloat16> values_of(const std::string& bytes) {
  std::vector<quant::bfloat16> values(bytes.size() / 2);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST_P(HfFormats, HoldTheBytesOfEachMatrixAndTheRestInBfloat16) {
  make();
  convert(root_ / "c", root_ / "plain");
  const auto plain = tensor_bytes(root_ / "plain"), found = tensor_bytes(folder());
  std::size_t expected = 0;
  for (const HfTensor& tensor : hf_tensors(even_llama())) {
    if (!tensor.hf_name.ends_with("_proj.weight")) {
      EXPECT_EQ(found.at(tensor.hf_name), plain.at(tensor.hf_name));
      ++expected;
      continue;
    }
    const quant::Extent extent{tensor.box.rows, tensor.box.cols};
    const std::vector<quant::bfloat16> values = values_of(plain.at(tensor.hf_name));
    const quant::Encoding encoding = quant::weight_encoding(GetParam());
    std::vector<std::uint8_t> data(static_cast<std::size_t>(data_bytes(encoding.element, extent.elements())));
    const quant::Extent tiles = scale_extent(encoding, extent);
    std::string scales(static_cast<std::size_t>(tiles.elements()) * size_of(scale_type(encoding.scale)), '\0');
    float amax = 0;
    quantize({.data = values.data()}, extent, encoding, {data.data(), scales.data(), &amax});
    EXPECT_EQ(found.at(tensor.hf_name), bytes_of(data, 0, data.size()));
    expected += 2;
    if (GetParam() == Format::nvfp4) {
      std::string rows;
      for (std::int64_t row = 0; row < extent.rows; ++row)
        rows += scales.substr(static_cast<std::size_t>(row / 16 * tiles.cols), static_cast<std::size_t>(tiles.cols));
      scales = rows;
      EXPECT_EQ(found.at(tensor.hf_name + "_scale_2"), bytes_of(std::vector{amax / 2688}, 0, 1));
      ++expected;
    }
    EXPECT_EQ(found.at(tensor.hf_name + (GetParam() == Format::fp8_block ? "_scale_inv" : "_scale")), scales);
  }
  EXPECT_EQ(found.size(), expected);
}

TEST_P(HfFormats, AreImportedAsTheirDequantizedValues) {
  make();
  convert(root_ / "c", root_ / "plain");
  convert(folder(), root_ / "back", {.dtype = DType::bf16});
  convert(root_ / "back", root_ / "values");
  const auto plain = tensor_bytes(root_ / "plain"), values = tensor_bytes(root_ / "values");
  ASSERT_EQ(plain.size(), values.size());
  bool changed = false;
  for (const HfTensor& tensor : hf_tensors(even_llama())) {
    std::string expected = plain.at(tensor.hf_name);
    if (tensor.hf_name.ends_with("_proj.weight")) {
      const quant::Extent extent{tensor.box.rows, tensor.box.cols};
      std::vector<quant::bfloat16> source = values_of(expected);
      const quant::Encoding encoding = quant::weight_encoding(GetParam());
      std::vector<std::uint8_t> data(static_cast<std::size_t>(extent.elements()));
      std::vector<float> scales(static_cast<std::size_t>(scale_extent(encoding, extent).elements()));
      float amax = 0;
      const quant::Quantized place{data.data(), scales.data(), &amax};
      quantize({.data = source.data()}, extent, encoding, place);
      dequantize(place, extent, encoding, source.data());
      expected = bytes_of(source, 0, source.size());
    }
    changed |= expected != plain.at(tensor.hf_name);
    EXPECT_EQ(values.at(tensor.hf_name), expected) << tensor.hf_name;
  }
  EXPECT_TRUE(changed);
}

TEST_P(HfFormats, HaveTheTypesAndShapesThatInferenceProgramsRead) {
  make();
  std::map<std::string, std::pair<std::string, std::vector<std::int64_t>>> found;
  for (const auto& entry : fs::directory_iterator(folder())) {
    if (entry.path().extension() != ".safetensors") continue;
    const checkpoint::SafetensorsFile file(entry.path());
    for (const auto& [name, tensor] : file.entries()) found[name] = {tensor.dtype, tensor.dims};
  }
  const auto expect = [&](const std::string& name, const std::string& type, const std::vector<std::int64_t>& dims) {
    EXPECT_EQ(found.at(name), std::make_pair(type, dims)) << name;
  };
  for (const HfTensor& tensor : hf_tensors(even_llama())) {
    const std::string& name = tensor.hf_name;
    const std::int64_t rows = tensor.box.rows, cols = tensor.box.cols;
    const auto parts = [](std::int64_t extent, std::int64_t of) { return (extent + of - 1) / of; };
    if (!name.ends_with("_proj.weight")) {
      expect(name, "BF16", tensor.dims);
      continue;
    }
    if (GetParam() == Format::nvfp4)
      expect(name, "U8", {rows, cols / 2});
    else
      expect(name, "F8_E4M3", {rows, cols});
    switch (GetParam()) {
      case Format::fp8:
        expect(name + "_scale", "F32", {1});
        break;
      case Format::fp8_block:
        expect(name + "_scale_inv", "F32", {parts(rows, 128), parts(cols, 128)});
        break;
      case Format::mxfp8:
        expect(name + "_scale", "U8", {rows, parts(cols, 32)});
        break;
      default:
        expect(name + "_scale", "F8_E4M3", {rows, parts(cols, 16)});
        expect(name + "_scale_2", "F32", {});
    }
  }
}

TEST_P(HfFormats, DescribeTheirQuantization) {
  make();
  const json config = json::parse(slurp(folder() / "config.json"));
  EXPECT_EQ(config["torch_dtype"], "bfloat16");
  ASSERT_EQ(config.contains("quantization_config"), GetParam() == Format::fp8_block);
  ASSERT_EQ(fs::exists(folder() / "hf_quant_config.json"), GetParam() == Format::nvfp4);
  if (GetParam() == Format::fp8_block) {
    EXPECT_EQ(config["quantization_config"]["quant_method"], "fp8");
    EXPECT_EQ(config["quantization_config"]["weight_block_size"], json({128, 128}));
    json other = config;
    other["quantization_config"]["weight_block_size"] = {64, 64};
    spill(folder() / "config.json", other.dump());
    EXPECT_NE(fault().find("quantization_config: expected weight_block_size [128,128]"), std::string::npos) << fault();
    other["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}};
    spill(folder() / "config.json", other.dump());
    EXPECT_NE(fault().find("quantization_config: expected quant_method \"fp8\""), std::string::npos) << fault();
  }
  if (GetParam() == Format::nvfp4) {
    json other = json::parse(slurp(folder() / "hf_quant_config.json"));
    EXPECT_EQ(other["quantization"]["quant_algo"], "NVFP4");
    EXPECT_EQ(other["quantization"]["group_size"], 16);
    other["quantization"]["quant_algo"] = "W4A16_AWQ";
    spill(folder() / "hf_quant_config.json", other.dump());
    EXPECT_NE(fault().find("hf_quant_config.json: quantization: expected quant_algo \"NVFP4\""), std::string::npos)
        << fault();
  }
}

// Other programs store numbers that no amax in bf16 gives. All codes and tile scales are 1, so each value is the
// number.
TEST(HfFormatValues, UseTheExactNumberOfAnNvfp4MatrixOfAnotherProgram) {
  const std::vector<std::byte> codes(8, std::byte{0x22}), scales(1, std::byte{0x38});
  for (int step = 0; step < 128; ++step) {
    const float number = 1.0F + static_cast<float>(step) / 128;
    std::vector<std::byte> bytes(sizeof number);
    std::memcpy(bytes.data(), &number, sizeof number);
    for (const quant::bfloat16 value : format_values(Format::nvfp4, {codes, scales, bytes}, {1, 16}))
      ASSERT_EQ(static_cast<float>(value), number);
  }
}

TEST(HfFormatNotes, NameTheBlocksThatTransformersMisreads) {
  const auto is_misread = [](std::int64_t rows, std::int64_t cols) {
    return is_misread_by_transformers(Format::fp8_block, {rows, cols});
  };
  EXPECT_FALSE(is_misread(128, 256) || is_misread(64, 14336) || is_misread(3, 5));
  EXPECT_TRUE(is_misread(129, 128) && is_misread(256, 288) && is_misread(576, 7168));
  EXPECT_FALSE(is_misread_by_transformers(Format::mxfp8, {129, 288}));
  const TemporaryFolder root;
  models::DecoderConfig config = even_llama();
  write_llama(root / "c", config, DType::bf16);
  EXPECT_FALSE(convert(root / "c", root / "a", {.format = Format::fp8_block}).contains("note"));
  config.intermediate_size = 130;
  write_llama(root / "c", config, DType::bf16);
  const ConvertReport report = convert(root / "c", root / "b", {.format = Format::fp8_block});
  EXPECT_NE(report["note"].get<std::string>().find("gate_proj.weight of 130 x 20"), std::string::npos) << report;
}

INSTANTIATE_TEST_SUITE_P(Formats, HfFormats,
                         ::testing::Values(Format::fp8, Format::fp8_block, Format::mxfp8, Format::nvfp4),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST(HfFormatErrors, AreRefused) {
  const TemporaryFolder root;
  write_llama(root / "c", odd_llama(false), DType::bf16);  // an odd intermediate size: rows of 33 in down_proj
  EXPECT_NE(input_error([&] { convert(root / "c", root / "a", {.format = Format::nvfp4}); }).find("down_proj"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(root / "a"));
  EXPECT_NE(input_error([&] {
              convert(root / "c", root / "a", {.dtype = DType::fp32, .format = Format::fp8});
            }).find("dtype: got fp32 with format fp8"),
            std::string::npos);
  convert(root / "c", root / "hf");
  EXPECT_NE(
      input_error([&] { convert(root / "hf", root / "b", {.format = Format::fp8}); }).find("expected a checkpoint"),
      std::string::npos);
}

}  // namespace
}  // namespace tessera::hub
