#include "tessera/hub/convert/hf_format.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"

namespace tessera::hub {
namespace {

constexpr std::string_view kE4M3 = "F8_E4M3";

template <typename T>
std::vector<std::byte> bytes_of_all(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// Returns one row of scales for each row of the matrix. `scales` has one row for each row of tiles.
std::vector<std::byte> repeat_rows(const std::vector<std::byte>& scales, quant::Extent tiles, std::int64_t tile_rows,
                                   std::int64_t rows) {
  std::vector<std::byte> repeated(static_cast<std::size_t>(rows * tiles.cols));
  for (std::int64_t row = 0; row < rows; ++row)
    std::copy_n(scales.begin() + row / tile_rows * tiles.cols, tiles.cols, repeated.begin() + row * tiles.cols);
  return repeated;
}

}  // namespace

std::vector<checkpoint::SafetensorsTensor> format_tensors(quant::Format format, const std::string& hf_name,
                                                          quant::Extent matrix) {
  const quant::Encoding encoding = quant::weight_encoding(format);
  if (matrix.cols % quant::elements_in_byte(encoding.element) != 0)
    throw InputError("tensor '{}': {} needs an even number of columns, got {}", hf_name, name_of(format), matrix.cols);
  const quant::Extent tiles = scale_extent(encoding, matrix);
  const std::vector<std::int64_t> dims{matrix.rows, matrix.cols};
  const checkpoint::SafetensorsTensor data{hf_name, quant::DType::u8, dims, kE4M3};
  switch (format) {
    case quant::Format::fp8:
      return {data, {hf_name + "_scale", quant::DType::fp32, {1}}};
    case quant::Format::fp8_block:
      return {data, {hf_name + "_scale_inv", quant::DType::fp32, {tiles.rows, tiles.cols}}};
    case quant::Format::mxfp8:
      return {data, {hf_name + "_scale", quant::DType::u8, {tiles.rows, tiles.cols}}};
    case quant::Format::nvfp4:
      return {{hf_name, quant::DType::u8, {matrix.rows, matrix.cols / 2}},
              {hf_name + "_scale", quant::DType::u8, {matrix.rows, tiles.cols}, kE4M3},
              {hf_name + "_scale_2", quant::DType::fp32, {}}};
    case quant::Format::bf16:
      break;
  }
  throw Error("format_tensors: {} is not a format with scales", name_of(format));
}

std::vector<std::vector<std::byte>> format_bytes(quant::Format format, std::span<const quant::bfloat16> values,
                                                 quant::Extent matrix) {
  const quant::Encoding encoding = quant::weight_encoding(format);
  const quant::Extent tiles = scale_extent(encoding, matrix);
  std::vector<std::uint8_t> data(static_cast<std::size_t>(data_bytes(encoding.element, matrix.elements())));
  const std::size_t scale_bytes = size_of(scale_type(encoding.scale));
  std::vector<std::byte> scales(static_cast<std::size_t>(tiles.elements()) * scale_bytes);
  float amax = 0;
  quantize({.data = values.data()}, matrix, encoding,
           {.data = data.data(), .scales = scales.data(), .tensor_amax = &amax});
  if (format != quant::Format::nvfp4) return {bytes_of_all(data), scales};
  return {bytes_of_all(data), repeat_rows(scales, tiles, encoding.tile.rows, matrix.rows),
          bytes_of_all(std::vector{amax / 2688.0F})};
}

std::optional<quant::Format> stored_format(
    const models::HfTensor& tensor,
    const std::function<const checkpoint::SafetensorsEntry*(const std::string&)>& find) {
  const std::string& hf_name = tensor.hf_name;
  if (!tensor.may_be_quantized) return {};
  const checkpoint::SafetensorsEntry* data = find(hf_name);
  if (data != nullptr && data->dtype == "U8") return quant::Format::nvfp4;
  if (find(hf_name + "_scale_inv") != nullptr) return quant::Format::fp8_block;
  const checkpoint::SafetensorsEntry* scale = find(hf_name + "_scale");
  if (scale == nullptr) return {};
  return scale->dtype == "F32" || scale->dims.size() < 2 ? quant::Format::fp8 : quant::Format::mxfp8;
}

void check_scales(quant::Format format, const std::vector<std::vector<std::byte>>& stored, const std::string& where) {
  const auto check = [&](float scale) {
    if (!(scale >= 0 && std::isfinite(scale)))
      throw InputError("{}: got a scale of {}, expected a finite value that is not negative", where, scale);
  };
  const auto check_floats = [&](const std::vector<std::byte>& bytes) {
    for (std::size_t at = 0; at + sizeof(float) <= bytes.size(); at += sizeof(float)) {
      float scale = 0;
      std::memcpy(&scale, bytes.data() + at, sizeof scale);
      check(scale);
    }
  };
  const quant::Scale type = quant::weight_encoding(format).scale;
  if (type == quant::Scale::fp32) check_floats(stored[1]);
  if (type == quant::Scale::e8m0)
    for (const std::byte scale : stored[1]) check(quant::E8M0::decode(static_cast<std::uint8_t>(scale)));
  if (type != quant::Scale::e4m3) return;
  for (const std::byte scale : stored[1]) check(quant::E4M3::decode(static_cast<std::uint8_t>(scale)));
  check_floats(stored[2]);
}

std::vector<quant::bfloat16> format_values(quant::Format format, const std::vector<std::vector<std::byte>>& stored,
                                           quant::Extent matrix) {
  quant::Encoding encoding = quant::weight_encoding(format);
  std::vector<std::uint8_t> data(stored[0].size());
  std::memcpy(data.data(), stored[0].data(), data.size());
  std::vector<std::byte> scales = stored[1];
  float amax = 0;
  if (format == quant::Format::nvfp4) {
    encoding.tile.rows = 1;  // in the file, each row of the matrix has separate scales
    float scale = 0;
    std::memcpy(&scale, stored[2].data(), sizeof scale);
    // The amax of a bf16 matrix is a bf16 number, so rounding recovers it.
    amax = static_cast<float>(quant::bfloat16(scale * 2688.0F));
    if (amax / 2688.0F != scale) amax = scale * 2688.0F;
  }
  std::vector<quant::bfloat16> values(static_cast<std::size_t>(matrix.elements()));
  dequantize({.data = data.data(), .scales = scales.data(), .tensor_amax = &amax}, matrix, encoding, values.data());
  return values;
}

bool is_misread_by_transformers(quant::Format format, quant::Extent matrix) {
  const auto is_uneven = [](std::int64_t extent) { return extent > 128 && extent % 128 != 0; };
  return format == quant::Format::fp8_block && (is_uneven(matrix.rows) || is_uneven(matrix.cols));
}

void remove_quantization_config(nlohmann::json& config, const std::string& where) {
  if (!config.is_object() || !config.contains("quantization_config")) return;
  const nlohmann::json& said = config["quantization_config"];
  if (said.is_null()) {
    config.erase("quantization_config");
    return;
  }
  const nlohmann::json known = quantization_config(quant::Format::fp8_block);
  for (const char* key : {"quant_method", "weight_block_size"})
    if (!said.is_object() || said.value(key, nlohmann::json()) != known[key])
      throw InputError("{}: quantization_config: expected {} {}, got {}", where, key, known[key].dump(),
                       base::shown(said));
  config.erase("quantization_config");
}

namespace {

// Returns the modules without a number format.
nlohmann::json modules_in_bf16(const std::vector<std::string>& routers) {
  nlohmann::json modules = nlohmann::json::array({"lm_head"});
  for (const std::string& router : routers) modules.push_back(router);
  return modules;
}

}  // namespace

nlohmann::json quantization_config(quant::Format format, const std::vector<std::string>& routers) {
  if (format != quant::Format::fp8_block) return nullptr;
  nlohmann::json config{
      {"quant_method", "fp8"}, {"weight_block_size", {128, 128}}, {"activation_scheme", "dynamic"}, {"fmt", "e4m3"}};
  // With a list, transformers no longer adds the output layer.
  if (!routers.empty()) config["modules_to_not_convert"] = modules_in_bf16(routers);
  return config;
}

nlohmann::json hf_quant_config(quant::Format format, const std::vector<std::string>& routers) {
  if (format != quant::Format::nvfp4) return nullptr;
  return {{"producer", {{"name", "tessera"}}},
          {"quantization",
           {{"quant_algo", "NVFP4"},
            {"kv_cache_quant_algo", nullptr},
            {"group_size", 16},
            {"exclude_modules", modules_in_bf16(routers)}}}};
}

void check_hf_quant_config(const nlohmann::json& config, const std::string& where) {
  const nlohmann::json known = hf_quant_config(quant::Format::nvfp4)["quantization"];
  const nlohmann::json said =
      config.is_object() ? config.value("quantization", nlohmann::json::object()) : nlohmann::json();
  for (const char* key : {"quant_algo", "group_size"})
    if (!said.is_object() || said.value(key, nlohmann::json()) != known[key])
      throw InputError("{}: quantization: expected {} {}, got {}", where, key, known[key].dump(), base::shown(said));
}

}  // namespace tessera::hub
