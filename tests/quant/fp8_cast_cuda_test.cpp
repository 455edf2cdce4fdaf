// Compares casts of activations and gradients to fp8 on a GPU with quantization on the host.
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "tests/quant/on_device.h"

namespace tessera::quant {
namespace {

std::int64_t up_to(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// A matrix of codes or scales, padded with zeros or with another value.
template <typename T>
std::vector<T> in_padding(const std::vector<T>& values, Extent matrix, Extent padded, T fill) {
  std::vector<T> result(static_cast<std::size_t>(padded.elements()), fill);
  for (std::int64_t row = 0; row < matrix.rows; ++row)
    std::copy_n(values.begin() + row * matrix.cols, matrix.cols, result.begin() + row * padded.cols);
  return result;
}

std::vector<float> scales_as_floats(const Stored& stored) {
  std::vector<float> scales(stored.scales.size() / sizeof(float));
  std::memcpy(scales.data(), stored.scales.data(), stored.scales.size());
  return scales;
}

float greatest_magnitude(const std::vector<bfloat16>& values) {
  float greatest = 0;
  take_amaxes(source_of(values), {1, static_cast<std::int64_t>(values.size())}, {},
              {0, static_cast<std::int64_t>(values.size())}, {&greatest, 1});
  return greatest;
}

// The results that a cast writes.
struct Wanted {
  bool rowwise = true, columnwise = true, amax = true;
};

void check_fp8_cast(const CudaTable& kernels, const std::vector<bfloat16>& values, Extent matrix, Extent padded,
                    Element element, float multiplier, std::size_t shift = 0, Wanted wanted = {}) {
  DeviceArray<bfloat16> source(values, 2 * shift);
  DeviceArray<std::uint8_t> rowwise(padded.elements()), columnwise(padded.elements());
  DeviceArray<float> factor(std::vector<float>{multiplier}), amax(std::vector<float>{0.25F});
  kernels.cast_fp8({.source = source.data(),
                    .matrix = matrix,
                    .padded = padded,
                    .element = element,
                    .multiplier = factor.data(),
                    .rowwise = wanted.rowwise ? rowwise.data() : nullptr,
                    .columnwise = wanted.columnwise ? columnwise.data() : nullptr,
                    .amax = wanted.amax ? amax.data() : nullptr},
                   nullptr);
  std::vector<std::uint8_t> codes(values.size());
  const Encoding encoding{.element = element};
  cast(source_of(values), matrix, encoding, {0, matrix.elements()}, {&multiplier, 1}, codes.data());
  const std::vector<std::uint8_t> untouched(static_cast<std::size_t>(padded.elements()),
                                            DeviceArray<std::uint8_t>::kFill);
  EXPECT_TRUE(
      same_bytes(rowwise.values(), wanted.rowwise ? in_padding(codes, matrix, padded, std::uint8_t{0}) : untouched));
  EXPECT_TRUE(same_bytes(columnwise.values(),
                         wanted.columnwise
                             ? in_padding(transposed_values(codes, matrix), flip(matrix), flip(padded), std::uint8_t{0})
                             : untouched));
  EXPECT_EQ(amax.values()[0], wanted.amax ? std::max(0.25F, greatest_magnitude(values)) : 0.25F);
}

class DeviceFp8Cast : public OnDevice {};

TEST_F(DeviceFp8Cast, GivesBothOrdersAndTheAmax) {
  unsigned seed = 0;
  for (const Extent& matrix : device_matrices())
    for (const Element element : {Element::e4m3, Element::e5m2})
      for (const std::int64_t more : {0, 16, 160}) {
        const auto values = rounded_values(all_kinds_of_values(matrix.elements(), ++seed));
        const Extent padded{.rows = up_to(matrix.rows, 16) + more, .cols = up_to(matrix.cols, 16) + 2 * more};
        check_fp8_cast(kernels(), values, matrix, padded, element, 0.37F * static_cast<float>(seed), seed % 2);
      }
}

TEST_F(DeviceFp8Cast, WritesOnlyTheRequestedResults) {
  const Extent matrix{.rows = 100, .cols = 288}, padded{.rows = 112, .cols = 288};
  const auto values = rounded_values(random_values(matrix.elements(), 11));
  for (const Wanted wanted : {Wanted{false, true, true}, Wanted{true, false, true}, Wanted{true, true, false},
                              Wanted{true, false, false}, Wanted{false, true, false}, Wanted{false, false, true}})
    check_fp8_cast(kernels(), values, matrix, padded, Element::e4m3, 3, 0, wanted);
}

// Multiplies all bf16 numbers by multipliers that produce every kind of rounding. Compares the conversion instructions
// with the definition.
TEST_F(DeviceFp8Cast, ConvertsEveryNumberAsDefined) {
  const Extent matrix{.rows = 256, .cols = 256};
  std::vector<bfloat16> values(65536);
  for (std::size_t i = 0; i < values.size(); ++i) values[i].bits = static_cast<std::uint16_t>(i);
  std::mt19937 random(1);
  std::vector<float> multipliers{1, 0.5F, 448, 0x1p-126F, 0x1p127F, 1.0F / 3, 3.402823466e38F, 0x1p-149F};
  for (int i = 0; i < 60; ++i)
    multipliers.push_back(
        std::ldexp(1 + static_cast<float>(random() % 8388608) / 8388608, static_cast<int>(i % 40) - 20));
  for (const float multiplier : multipliers)
    for (const Element element : {Element::e4m3, Element::e5m2})
      check_fp8_cast(kernels(), values, matrix, matrix, element, multiplier);
}

// The scales of blocks along the rows. The scales of adjacent rows are adjacent; padding has the scale 1.
std::vector<float> laid_out_scales(const Stored& stored, Extent scales, std::int64_t padded_rows) {
  return in_padding(transposed_values(scales_as_floats(stored), scales), flip(scales), {scales.cols, padded_rows},
                    1.0F);
}

// The scales of GEMM operands: NaN if a tile has an infinite element (operand_scale).
Stored as_operand(Stored stored, const std::vector<bfloat16>& values, Extent matrix, const Encoding& encoding) {
  std::vector<float> amaxes(static_cast<std::size_t>(scale_extent(encoding, matrix).elements())), multipliers(amaxes);
  take_amaxes(source_of(values), matrix, encoding.tile, {.end = matrix.elements()}, amaxes);
  make_operand_scales(encoding, amaxes, 0, multipliers, stored.scales.data());
  return stored;
}

void check_block_cast(const CudaTable& kernels, const std::vector<bfloat16>& values, Extent matrix, Extent padded,
                      Element element, bool powers_of_two, std::size_t shift) {
  const Encoding rows{.element = element, .tile = {1, 128}, .powers_of_two = powers_of_two};
  const Encoding cols{.element = element, .tile = {128, 1}, .powers_of_two = powers_of_two};
  const Extent row_scales = scale_extent(rows, matrix), col_scales = scale_extent(cols, matrix);
  DeviceArray<bfloat16> source(values, 2 * shift);
  DeviceArray<std::uint8_t> rowwise(padded.elements()), columnwise(padded.elements());
  DeviceArray<float> rowwise_scales(row_scales.cols * padded.rows), columnwise_scales(col_scales.rows * padded.cols);
  kernels.cast_blocks({.source = source.data(),
                       .matrix = matrix,
                       .padded = padded,
                       .element = element,
                       .powers_of_two = powers_of_two,
                       .rowwise = rowwise.data(),
                       .rowwise_scales = rowwise_scales.data(),
                       .columnwise = columnwise.data(),
                       .columnwise_scales = columnwise_scales.data()},
                      nullptr);
  const Stored by_rows = as_operand(quantized(values, matrix, rows), values, matrix, rows);
  const Stored by_cols = as_operand(quantized(values, matrix, cols), values, matrix, cols);
  EXPECT_TRUE(same_bytes(rowwise.values(), in_padding(by_rows.data, matrix, padded, std::uint8_t{0})));
  EXPECT_TRUE(same_bytes(rowwise_scales.values(), laid_out_scales(by_rows, row_scales, padded.rows)));
  EXPECT_TRUE(same_bytes(columnwise.values(), in_padding(transposed_values(by_cols.data, matrix), flip(matrix),
                                                         flip(padded), std::uint8_t{0})));
  EXPECT_TRUE(same_bytes(columnwise_scales.values(),
                         in_padding(scales_as_floats(by_cols), col_scales, {col_scales.rows, padded.cols}, 1.0F)));
}

class DeviceBlockCast : public OnDevice {};

TEST_F(DeviceBlockCast, GivesBothOrdersWithTheirScales) {
  unsigned seed = 1000;
  for (const Extent& matrix : device_matrices())
    for (const Element element : {Element::e4m3, Element::e5m2})
      for (const std::int64_t more : {0, 16, 160}) {
        ++seed;
        const auto values = rounded_values(all_kinds_of_values(matrix.elements(), seed));
        const Extent padded{.rows = up_to(matrix.rows, 16) + more, .cols = up_to(matrix.cols, 16) + 2 * more};
        check_block_cast(kernels(), values, matrix, padded, element, seed % 3 != 0, seed % 2);
      }
}

TEST_F(DeviceBlockCast, GivesOneOrderIfTheOtherIsNotRequested) {
  const Extent matrix{.rows = 130, .cols = 288}, padded{.rows = 144, .cols = 288};
  const auto values = rounded_values(random_values(matrix.elements(), 21));
  DeviceArray<bfloat16> source(values);
  DeviceArray<std::uint8_t> rowwise(padded.elements()), columnwise(padded.elements());
  DeviceArray<float> rowwise_scales(3 * padded.rows), columnwise_scales(2 * padded.cols);
  kernels().cast_blocks({.source = source.data(),
                         .matrix = matrix,
                         .padded = padded,
                         .rowwise = rowwise.data(),
                         .rowwise_scales = rowwise_scales.data()},
                        nullptr);
  kernels().cast_blocks({.source = source.data(),
                         .matrix = matrix,
                         .padded = padded,
                         .columnwise = columnwise.data(),
                         .columnwise_scales = columnwise_scales.data()},
                        nullptr);
  const Encoding rows{.tile = {1, 128}, .powers_of_two = true}, cols{.tile = {128, 1}, .powers_of_two = true};
  EXPECT_TRUE(
      same_bytes(rowwise.values(), in_padding(quantized(values, matrix, rows).data, matrix, padded, std::uint8_t{0})));
  EXPECT_TRUE(
      same_bytes(columnwise.values(), in_padding(transposed_values(quantized(values, matrix, cols).data, matrix),
                                                 flip(matrix), flip(padded), std::uint8_t{0})));
}

}  // namespace
}  // namespace tessera::quant
