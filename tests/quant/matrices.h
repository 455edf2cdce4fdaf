// Matrices and encodings for tests, and quantization of a whole matrix with definition.h.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "tessera/quant/formats/quantize.h"
#include "tests/quant/definition.h"

namespace tessera::quant {

struct NamedEncoding {
  std::string name;
  Encoding encoding;
};
inline void PrintTo(const NamedEncoding& named, std::ostream* stream) {
  *stream << named.name;
}
// The base of tests whose parameter is an encoding.
inline std::string name_of_case(const testing::TestParamInfo<NamedEncoding>& info) {
  return info.param.name;
}

inline std::vector<NamedEncoding> all_encodings() {
  const auto fp8 = [](std::int64_t rows, std::int64_t cols) {
    return Encoding{Element::e4m3, Scale::fp32, {rows, cols}, rows != 0};
  };
  return {{"tensor_e4m3", fp8(0, 0)},
          {"tensor_e5m2", {Element::e5m2, Scale::fp32, {0, 0}}},
          {"block_128x128", fp8(128, 128)},
          {"block_1x128", fp8(1, 128)},
          {"block_128x1", fp8(128, 1)},
          {"mxfp8_1x32", {Element::e4m3, Scale::e8m0, {1, 32}}},
          {"mxfp8_32x1", {Element::e4m3, Scale::e8m0, {32, 1}}},
          {"nvfp4_16x16", {Element::e2m1, Scale::e4m3, {16, 16}}},
          {"nvfp4_1x16", {Element::e2m1, Scale::e4m3, {1, 16}}},
          {"nvfp4_16x1", {Element::e2m1, Scale::e4m3, {16, 1}}}};
}

// Returns values of many magnitudes and both signs, and some zeros. The values are not bf16 numbers.
inline std::vector<float> random_values(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) {
    const auto bits = static_cast<std::uint32_t>(random());
    const float fraction = std::bit_cast<float>(0x3F800000U | bits >> 9 | 1U);
    const int exponent = -static_cast<int>(random() % 12 + random() % 4 * (random() % 8));
    value = random() % 50 == 0 ? 0 : std::ldexp((bits & 1U) != 0 ? fraction : -fraction, exponent);
  }
  return values;
}

inline std::vector<bfloat16> rounded_values(const std::vector<float>& values) {
  std::vector<bfloat16> result;
  for (const float value : values) result.push_back(bfloat16(value));
  return result;
}

inline Source source_of(const std::vector<float>& values) {
  return {.data = values.data(), .type = DType::fp32};
}
inline Source source_of(const std::vector<bfloat16>& values) {
  return {.data = values.data(), .type = DType::bf16};
}

// The bytes of a quantized matrix.
struct Stored {
  std::vector<std::uint8_t> data, scales;
  float tensor_amax = 0;

  Quantized view() { return {.data = data.data(), .scales = scales.data(), .tensor_amax = &tensor_amax}; }
  bool operator==(const Stored&) const = default;
};

inline Stored room_for(const Encoding& encoding, Extent matrix) {
  const auto scales = static_cast<std::size_t>(scale_extent(encoding, matrix).elements());
  return {.data = std::vector<std::uint8_t>(static_cast<std::size_t>(data_bytes(encoding.element, matrix.elements())),
                                            std::uint8_t{0xA5}),
          .scales = std::vector<std::uint8_t>(scales * size_of(scale_type(encoding.scale)), std::uint8_t{0xA5})};
}

template <typename T>
Stored quantized(const std::vector<T>& values, Extent matrix, const Encoding& encoding) {
  Stored stored = room_for(encoding, matrix);
  quantize(source_of(values), matrix, encoding, stored.view());
  return stored;
}

// Returns true if `mark` is correct for a MasterSlice: 0 if all elements of the slice are finite in bf16, otherwise
// NaN.
template <typename T>
bool is_mark_of(float mark, const std::vector<T>& master, Slice slice) {
  const bool finite = std::all_of(master.begin() + slice.begin, master.begin() + slice.end, [](T element) {
    return std::isfinite(static_cast<float>(bfloat16(static_cast<float>(element))));
  });
  return finite ? mark == 0 : std::isnan(mark);
}

constexpr Extent flip(Extent matrix) {
  return {.rows = matrix.cols, .cols = matrix.rows};
}

inline Encoding flipped(Encoding encoding) {
  std::swap(encoding.tile.rows, encoding.tile.cols);
  return encoding;
}

template <typename T>
std::vector<T> transposed_values(const std::vector<T>& values, Extent matrix) {
  std::vector<T> result(values.size());
  for (std::int64_t row = 0; row < matrix.rows; ++row)
    for (std::int64_t col = 0; col < matrix.cols; ++col)
      result[static_cast<std::size_t>(col * matrix.rows + row)] =
          values[static_cast<std::size_t>(row * matrix.cols + col)];
  return result;
}

namespace definition {

inline std::size_t tile_of(std::int64_t row, std::int64_t col, Extent matrix, const ScaleTile& tile) {
  if (tile.rows == 0) return 0;
  const std::int64_t tiles_in_row = (matrix.cols + tile.cols - 1) / tile.cols;
  return static_cast<std::size_t>(row / tile.rows * tiles_in_row + col / tile.cols);
}

// Returns the scales of all tiles. Sets `tensor_amax` to the amax of the whole matrix.
inline std::vector<Scales> scales_of(const std::vector<bfloat16>& values, Extent matrix, const Encoding& encoding,
                                     float& tensor_amax) {
  const std::size_t last = matrix.elements() > 0 ? tile_of(matrix.rows - 1, matrix.cols - 1, matrix, encoding.tile) : 0;
  std::vector<double> amaxes(last + 1);
  tensor_amax = 0;
  for (std::int64_t row = 0; row < matrix.rows; ++row)
    for (std::int64_t col = 0; col < matrix.cols; ++col) {
      const float magnitude = std::fabs(static_cast<float>(values[static_cast<std::size_t>(row * matrix.cols + col)]));
      if (std::isnan(magnitude)) continue;
      double& amax = amaxes[tile_of(row, col, matrix, encoding.tile)];
      amax = std::max(amax, static_cast<double>(magnitude));
      tensor_amax = std::max(tensor_amax, magnitude);
    }
  std::vector<Scales> scales;
  for (const double amax : amaxes) scales.push_back(tile_scales(encoding, amax, tensor_amax));
  return scales;
}

// Returns the bytes of the whole matrix. Writes the dequantized values to `dequantized`.
inline Stored quantized(const std::vector<bfloat16>& values, Extent matrix, const Encoding& encoding,
                        std::vector<bfloat16>& dequantized) {
  Stored stored;
  const std::vector<Scales> scales = scales_of(values, matrix, encoding, stored.tensor_amax);
  for (const Scales& scale : scales)
    for (std::size_t byte = 0; byte < size_of(scale_type(encoding.scale)); ++byte)
      stored.scales.push_back(static_cast<std::uint8_t>(scale.stored >> 8 * byte));
  std::vector<std::uint8_t> codes;
  dequantized.clear();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    const Scales& scale = scales[tile_of(index / matrix.cols, index % matrix.cols, matrix, encoding.tile)];
    codes.push_back(
        encode(encoding.element, rounded(static_cast<double>(static_cast<float>(values[i])) * scale.multiplier)));
    dequantized.push_back(
        bfloat16(static_cast<float>(scale.decode * definition::decode(encoding.element, codes.back()))));
  }
  stored.data = codes;
  if (encoding.element == Element::e2m1) {
    stored.data.clear();
    for (std::size_t i = 0; i < codes.size(); i += 2)
      stored.data.push_back(static_cast<std::uint8_t>(codes[i] + 16 * codes[i + 1]));
  }
  return stored;
}

}  // namespace definition
}  // namespace tessera::quant
