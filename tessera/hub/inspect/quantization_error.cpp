#include "tessera/hub/inspect/quantization_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/hub/stored_rows.h"

namespace tessera::hub {
namespace {

// A dequantized matrix and its tile multipliers.
struct RoundTrip {
  std::vector<quant::bfloat16> values;
  std::vector<float> multipliers;  // index: tile
  float amax = 0;
};

RoundTrip round_trip(std::span<const quant::bfloat16> values, quant::Extent matrix, const quant::Encoding& encoding) {
  const auto tiles = static_cast<std::size_t>(scale_extent(encoding, matrix).elements());
  const quant::Source source{.data = values.data()};
  const quant::Slice whole{.end = matrix.elements()};
  std::vector<float> amaxes(tiles), scales(tiles);  // large enough for scales of any type
  RoundTrip result{.values = std::vector<quant::bfloat16>(values.size()), .multipliers = std::vector<float>(tiles)};
  take_amaxes(source, matrix, encoding.tile, whole, amaxes);
  if (tiles > 0) result.amax = *std::ranges::max_element(amaxes);
  make_scales(encoding, amaxes, result.amax, result.multipliers, scales.data());
  std::vector<std::uint8_t> data(values.size());
  quant::cast(source, matrix, encoding, whole, result.multipliers, data.data());
  dequantize({.data = data.data(), .scales = scales.data(), .tensor_amax = &result.amax}, matrix, encoding,
             result.values.data());
  return result;
}

// Returns the number of the tile of an element.
std::size_t tile_of(std::int64_t row, std::int64_t col, const quant::ScaleTile& tile, std::int64_t tiles_in_row) {
  const std::int64_t down = tile.rows == 0 ? 0 : row / tile.rows, across = tile.cols == 0 ? 0 : col / tile.cols;
  return static_cast<std::size_t>(down * tiles_in_row + across);
}

// Returns the elements of a weight, rounded to bf16.
std::vector<quant::bfloat16> read_rounded(const checkpoint::CheckpointReader& reader,
                                          const checkpoint::StoredTensor& source) {
  const layout::Shape shape = layout::matrix_shape(source.dims);
  std::vector<quant::bfloat16> values;
  values.reserve(static_cast<std::size_t>(shape.elements()));
  read_rows(reader, source, {.rows = shape.rows, .cols = shape.cols}, quant::DType::bf16,
            [&](const std::byte* data, std::int64_t elements) {
              const auto* first = reinterpret_cast<const quant::bfloat16*>(data);
              values.insert(values.end(), first, first + elements);
            });
  return values;
}

nlohmann::json json_of(const QuantizationError& error) {
  return {{"relative_rms", error.relative_rms},
          {"max_error", error.max_error},
          {"saturated", error.saturated},
          {"underflowed", error.underflowed},
          {"not_finite", error.not_finite}};
}

// Returns the errors of all matrices of a stack. `matrix`: one matrix.
nlohmann::json error_of_stack(std::span<const quant::bfloat16> values, quant::Extent matrix, quant::Format format) {
  const auto elements = static_cast<std::size_t>(matrix.elements());
  if (values.size() <= elements) return json_of(quantization_error(values, matrix, format));
  QuantizationError all;
  std::size_t worst = 0;
  double worst_rms = -1;
  const std::size_t matrices = values.size() / elements;
  for (std::size_t number = 0; number < matrices; ++number) {
    const QuantizationError one = quantization_error(values.subspan(number * elements, elements), matrix, format);
    all.relative_rms += one.relative_rms / static_cast<double>(matrices);
    all.max_error = std::max(all.max_error, one.max_error);
    all.saturated += one.saturated;
    all.underflowed += one.underflowed;
    all.not_finite += one.not_finite;
    if (one.relative_rms > worst_rms) worst = number, worst_rms = one.relative_rms;
  }
  nlohmann::json json = json_of(all);
  json["worst"] = {{"matrix", worst}, {"relative_rms", worst_rms}};
  return json;
}

}  // namespace

QuantizationError quantization_error(std::span<const quant::bfloat16> values, quant::Extent matrix,
                                     quant::Format format) {
  const quant::Encoding encoding = quant::weight_encoding(format);
  const RoundTrip back = round_trip(values, matrix, encoding);
  const std::int64_t tiles_in_row = scale_extent(encoding, matrix).cols;
  const float greatest = greatest_of(encoding.element);
  QuantizationError error;
  double squares = 0, lost = 0, amax = 0;
  for (std::int64_t row = 0; row < matrix.rows; ++row)
    for (std::int64_t col = 0; col < matrix.cols; ++col) {
      const auto at = static_cast<std::size_t>(row * matrix.cols + col);
      const auto value = static_cast<float>(values[at]), stored = static_cast<float>(back.values[at]);
      if (!std::isfinite(value)) {
        ++error.not_finite;
        continue;
      }
      const double difference = static_cast<double>(stored) - value;
      squares += static_cast<double>(value) * value;
      lost += difference * difference;
      amax = std::max(amax, std::fabs(static_cast<double>(value)));
      error.max_error = std::max(error.max_error, std::fabs(difference));
      const float scaled = value * back.multipliers[tile_of(row, col, encoding.tile, tiles_in_row)];
      // If a product exceeds the greatest element only because the product was rounded, the element does not count as
      // saturated.
      error.saturated += std::fabs(scaled) > greatest && std::fabs(stored) < std::fabs(value) ? 1 : 0;
      error.underflowed += value != 0 && stored == 0 ? 1 : 0;
    }
  error.relative_rms = squares > 0 ? std::sqrt(lost / squares) : 0;
  error.max_error = amax > 0 ? error.max_error / amax : 0;
  return error;
}

std::vector<quant::Format> parse_error_formats(const std::vector<std::string>& words) {
  const auto all = {quant::Format::fp8, quant::Format::fp8_block, quant::Format::mxfp8, quant::Format::nvfp4};
  std::vector<quant::Format> formats;
  for (const std::string& word : words) {
    if (word == "all") {
      formats = all;
      return formats;
    }
    const auto found = std::ranges::find(all, word, [](quant::Format format) { return name_of(format); });
    if (found == all.end())
      throw InputError("--quantization-error: got '{}', expected all, fp8, fp8_block, mxfp8 or nvfp4", word);
    if (std::ranges::find(formats, *found) == formats.end()) formats.push_back(*found);
  }
  return formats;
}

nlohmann::json quantization_errors(const checkpoint::CheckpointReader& reader, const checkpoint::StoredTensor& weight,
                                   std::span<const quant::Format> formats) {
  const checkpoint::StoredTensor* master = reader.find(weight.name, checkpoint::Kind::master);
  const std::vector<quant::bfloat16> values = read_rounded(reader, master != nullptr ? *master : weight);
  const quant::Extent matrix{.rows = weight.dims[weight.dims.size() - 2], .cols = weight.dims.back()};
  nlohmann::json result = nlohmann::json::object();
  for (const quant::Format format : formats) {
    nlohmann::json& entry = result[std::string(name_of(format))];
    if (matrix.cols % quant::elements_in_byte(quant::weight_encoding(format).element) != 0)
      entry = {{"error", fmt::format("{} needs an even number of columns, got {}", name_of(format), matrix.cols)}};
    else
      entry = error_of_stack(values, matrix, format);
  }
  return result;
}

std::string quantization_error_table(const nlohmann::json& tensors) {
  std::size_t width = 4;
  bool any = false;
  for (const auto& tensor : tensors) {
    if (!tensor.contains("quantization_error")) continue;
    any = true;
    width = std::max(width, tensor["name"].get<std::string>().size());
  }
  if (!any) return "";
  std::string text = fmt::format("\n{:<{}}  {:<9}  {:>9}  {:>9}  {:>9}  {:>11}\n", "name", width, "format", "rel. rms",
                                 "max/amax", "saturated", "underflowed");
  for (const auto& tensor : tensors) {
    if (!tensor.contains("quantization_error")) continue;
    for (const auto& [format, error] : tensor["quantization_error"].items()) {
      text += fmt::format("{:<{}}  {:<9}", tensor["name"].get<std::string>(), width, format);
      if (error.contains("error")) {
        text += "  " + error["error"].get<std::string>() + "\n";
        continue;
      }
      text += fmt::format("  {:>9.2e}  {:>9.2e}  {:>9}  {:>11}", error["relative_rms"].get<double>(),
                          error["max_error"].get<double>(), error["saturated"].get<std::int64_t>(),
                          error["underflowed"].get<std::int64_t>());
      if (const auto count = error["not_finite"].get<std::int64_t>(); count > 0)
        text += fmt::format("  {} not finite", count);
      text += "\n";
    }
  }
  return text;
}

}  // namespace tessera::hub
