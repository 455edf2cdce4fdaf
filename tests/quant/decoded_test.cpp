// Checks decoded values against products of codes and scales in fp64, and decoded operands against stored codes.
#include "tessera/quant/formats/decoded.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/quant/matrices.h"
#include "tests/quant/values.h"

namespace tessera::quant {
namespace {

constexpr Encoding kOperandFp8{.element = Element::e4m3}, kGradientFp8{.element = Element::e5m2};
constexpr Encoding kOperandBlock{.element = Element::e4m3, .tile = {1, 128}, .powers_of_two = true};
constexpr Encoding kOperandMxfp8{.element = Element::e4m3, .scale = Scale::e8m0, .tile = {1, 32}};
constexpr Encoding kOperandNvfp4{.element = Element::e2m1, .scale = Scale::e4m3, .tile = {1, 16}};
constexpr float kInfinite = std::numeric_limits<float>::infinity(),
                kNotANumber = std::numeric_limits<float>::quiet_NaN();

bfloat16 decoded(const Encoding& encoding, std::uint8_t code, std::uint32_t stored) {
  return decoded_value(decode(encoding.element, code), decoded_factor(encoding, stored));
}

// Returns true if a value is code x scale: exactly if the product is a bf16 number, otherwise rounded once.
bool is_product(bfloat16 value, double code, double scale) {
  const double exact = code * scale;
  if (std::isnan(exact)) return value.bits == 0x7FFF;
  const auto got = static_cast<double>(static_cast<float>(value));
  const bool is_bfloat16 = std::fabs(exact) < 0x1p128 && std::fmod(exact, 0x1p-133) == 0;  // codes have 4 bits
  return is_bfloat16 ? got == exact : value.bits == bfloat16(static_cast<float>(exact)).bits;
}

void check_codes(const Encoding& encoding, std::uint32_t stored, double scale) {
  for (int code = 0; code < (encoding.element == Element::e2m1 ? 16 : 256); ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    ASSERT_TRUE(is_product(decoded(encoding, byte, stored), definition::decode(encoding.element, byte), scale))
        << "code " << code << ", scale " << stored;
  }
}

TEST(DecodedValue, OfEveryCodeAndScaleIsTheirProduct) {
  for (std::uint32_t stored = 0; stored < 256; ++stored) {
    const auto byte = static_cast<std::uint8_t>(stored);
    check_codes(kOperandNvfp4, stored, definition::decode(Element::e4m3, byte));
    check_codes(kOperandMxfp8, stored, definition::decode_e8m0(byte));
  }
  for (int exponent = -127; exponent <= 127; ++exponent)
    check_codes(kOperandBlock, std::bit_cast<std::uint32_t>(std::ldexp(1.0F, exponent)), std::ldexp(1.0, exponent));
  check_codes(kOperandBlock, nan_scale(Scale::fp32), kNotANumber);
  check_codes(kOperandFp8, std::bit_cast<std::uint32_t>(3.0F), 1);  // the scale of the matrix is not part of the values
  check_codes(kGradientFp8, nan_scale(Scale::fp32), 1);
}

TEST(DecodedValue, OfNvfp4HasAtMostSixBits) {
  double least = 1, greatest = 0;
  for (std::uint32_t stored = 0; stored < 0x7F; ++stored)
    for (std::uint8_t code = 0; code < 8; ++code) {
      const auto value = static_cast<double>(static_cast<float>(decoded(kOperandNvfp4, code, stored)));
      ASSERT_EQ(value, definition::decode(Element::e2m1, code) *
                           definition::decode(Element::e4m3, static_cast<std::uint8_t>(stored)));
      int exponent = 0;
      ASSERT_EQ(std::fmod(std::frexp(value, &exponent) * 64, 1), 0);
      if (value > 0) least = std::min(least, value);
      greatest = std::max(greatest, value);
    }
  EXPECT_EQ(least, 0x1p-10);
  EXPECT_EQ(greatest, 2688);
}

// Rounds every bf16 number that a tile with the scale 2^(code - 127) can hold. No decoded value is rounded again,
// except that numbers of 2^128 - 2^123 and more become infinite.
TEST(DecodedValue, OfEveryNumberOfATileIsExact) {
  std::int64_t pairs = 0, infinite = 0;
  for (std::uint8_t code = 0; code <= 247; ++code) {
    const double scale = definition::decode_e8m0(code);
    const float multiplier = E8M0::multiplier(code);
    const std::uint32_t fp32_scale = std::bit_cast<std::uint32_t>(1.0F / multiplier);
    for (std::uint32_t bits = 0; bits < 0x7F80; ++bits) {
      const auto number = std::bit_cast<float>(bits << 16);
      if (static_cast<double>(number) > 448 * scale) break;
      ++pairs;
      const std::uint8_t element = E4M3::encode(number * multiplier);
      const bfloat16 value = decoded(kOperandMxfp8, element, code);
      ASSERT_EQ(value.bits, decoded(kOperandBlock, element, fp32_scale).bits);
      if (std::isinf(static_cast<float>(value))) {
        ++infinite;
        ASSERT_GE(static_cast<double>(number), 0x1p128 - 0x1p123);
        continue;
      }
      ASSERT_EQ(static_cast<double>(static_cast<float>(value)), static_cast<double>(E4M3::decode(element)) * scale)
          << "code " << +code << ", number " << std::hexfloat << number;
    }
  }
  EXPECT_EQ(pairs, 4'198'295);
  EXPECT_EQ(infinite, 8);  // 0x7F78 to 0x7F7F
}

TEST(ProductAlpha, IsOneOrTheProductOfTheNumbersOfBothMatrices) {
  EXPECT_EQ(product_alpha(kOperandMxfp8, kNotANumber, kOperandMxfp8, kNotANumber), 1);
  EXPECT_EQ(product_alpha(kOperandBlock, 3, kOperandBlock, 5), 1);
  EXPECT_EQ(product_alpha(kOperandFp8, 0x1p-100F, kGradientFp8, 3), 0x1p-100F * 3);
  EXPECT_TRUE(std::isnan(product_alpha(kOperandFp8, kNotANumber, kGradientFp8, 3)));
  EXPECT_EQ(product_alpha(kOperandNvfp4, 2688, kOperandNvfp4, 2688), 1);
  EXPECT_EQ(product_alpha(kOperandNvfp4, 0, kOperandNvfp4, 3), 0);
  EXPECT_EQ(product_alpha(kOperandNvfp4, 1e30F, kOperandNvfp4, 1e30F), kInfinite);
  EXPECT_EQ(product_alpha(kOperandNvfp4, kInfinite, kOperandNvfp4, 3), kInfinite);
  // The product of both numbers exceeds fp32, but alpha does not.
  EXPECT_EQ(product_alpha(kOperandNvfp4, 1e22F, kOperandNvfp4, 3e22F),
            static_cast<float>(static_cast<double>(1e22F) * static_cast<double>(3e22F) / 7225344.0));
}

// The multiplier of the matrix is at most the largest float. Below an amax of 2688 / FLT_MAX = 7.9e-36, it is too
// small, and values shrink by the factor amax / 7.9e-36. A value is rounded twice: its scale to 1/16, and its element
// to 1/8.
TEST(TinyOperands, OfNvfp4ShrinkBelowAnAmaxOf8e36) {
  constexpr double kLeast = 2688 / static_cast<double>(std::numeric_limits<float>::max());
  for (const float amax : {1e-30F, 1e-35F, 8e-36F, 7e-36F, 1e-36F, 3e-37F}) {
    const std::vector<bfloat16> values(16, bfloat16(amax));
    std::vector<bfloat16> result(16);
    const auto whole = static_cast<float>(values[0]);
    decode_operand({.values = values.data(), .matrix = {1, 16}, .encoding = kOperandNvfp4, .whole = whole},
                   result.data());
    const double value = static_cast<double>(static_cast<float>(result[0])) * static_cast<double>(whole) / 2688;
    const double factor = std::min(1.0, static_cast<double>(whole) / kLeast);
    EXPECT_NEAR(value, factor * static_cast<double>(whole), (1.0 / 16 + 1.0 / 8) * factor * static_cast<double>(whole))
        << amax;
  }
}

const std::vector<Extent>& operand_extents() {
  static const std::vector<Extent> operand_extents{{1, 2}, {5, 7}, {16, 16}, {17, 33}, {33, 130}, {129, 288}, {3, 1}};
  return operand_extents;
}

class Operands : public testing::TestWithParam<NamedEncoding> {
 protected:
  const Encoding& encoding() const { return GetParam().encoding; }
  // Returns the number of the whole matrix that an encoding needs.
  float whole_of(const std::vector<bfloat16>& values) const {
    float amax = 0;
    const auto count = static_cast<std::int64_t>(values.size());
    take_amaxes(source_of(values), {1, count}, {}, {0, count}, {&amax, 1});
    return has_one_scale(encoding()) ? tile_scale(encoding(), amax, 0).multiplier : amax;
  }
  OperandSource operand_of(const std::vector<bfloat16>& values, Extent matrix) const {
    return {.values = values.data(), .matrix = matrix, .encoding = encoding(), .whole = whole_of(values)};
  }
  std::vector<bfloat16> decoded_operand(const std::vector<bfloat16>& values, Extent matrix) const {
    std::vector<bfloat16> result(values.size());
    decode_operand(operand_of(values, matrix), result.data());
    return result;
  }
};
INSTANTIATE_TEST_SUITE_P(Encodings, Operands, testing::ValuesIn(all_encodings()), name_of_case);

// Returns the matrix in rows of another length: with zeros at their ends, or without their last columns.
std::vector<bfloat16> in_rows_of(std::int64_t cols, const std::vector<bfloat16>& values, Extent matrix) {
  std::vector<bfloat16> result(static_cast<std::size_t>(matrix.rows * cols));
  for (std::int64_t row = 0; row < matrix.rows; ++row)
    std::copy_n(values.begin() + row * matrix.cols, std::min(cols, matrix.cols), result.begin() + row * cols);
  return result;
}

TEST_P(Operands, OfFiniteValuesHaveTheCodesOfAWeight) {
  unsigned seed = 0;
  for (const Extent& matrix : operand_extents()) {
    const auto values = rounded_values(random_values(matrix.elements(), ++seed));
    const Extent wide = stored_extent(encoding(), matrix);
    Stored expected = quantized(in_rows_of(wide.cols, values, matrix), wide, encoding());
    Stored got = room_for(encoding(), wide);
    if (has_one_scale(encoding())) got.scales = expected.scales;  // the caller writes this scale
    got.tensor_amax = expected.tensor_amax;
    quantize_operand(operand_of(values, matrix), got.view());
    EXPECT_EQ(got, expected);
  }
}

TEST_P(Operands, AreTheDecodedValuesOfTheirCodes) {
  unsigned seed = 100;
  for (const Extent& matrix : operand_extents())
    for (const float special : {0.0F, -0.0F, 1e-30F, 1e30F, -FLT_MAX, kInfinite, kNotANumber}) {
      auto values = rounded_values(random_values(matrix.elements(), ++seed));
      values[values.size() / 2] = bfloat16(special);
      const Extent wide = stored_extent(encoding(), matrix);
      Stored stored = room_for(encoding(), wide);
      quantize_operand(operand_of(values, matrix), stored.view());
      std::vector<bfloat16> from_codes(static_cast<std::size_t>(wide.elements()));
      decode(stored.view(), wide, encoding(), from_codes.data());
      EXPECT_TRUE(same_bits(decoded_operand(values, matrix), in_rows_of(matrix.cols, from_codes, wide))) << special;
    }
}

// A tile with a NaN or an infinity is NaN. Other tiles do not change, except by the amax of the whole matrix.
TEST_P(Operands, ShowValuesThatAreNotFinite) {
  if (has_one_scale(encoding())) return;  // the caller computes the scale
  const Extent matrix{.rows = 40, .cols = 80};
  auto values = rounded_values(random_values(matrix.elements(), 3));
  const float whole = whole_of(values);
  const auto decoded_with = [&] {
    std::vector<bfloat16> result(values.size());
    decode_operand({.values = values.data(), .matrix = matrix, .encoding = encoding(), .whole = whole}, result.data());
    return result;
  };
  const std::vector<bfloat16> finite = decoded_with();
  constexpr std::int64_t kRow = 19, kCol = 41;
  for (const float special : {kInfinite, -kInfinite, kNotANumber, -kNotANumber}) {
    values[kRow * 80 + kCol] = bfloat16(special);
    const std::vector<bfloat16> got = decoded_with();
    const bool whole_tile = encoding().scale != Scale::fp32 || !std::isnan(special);
    for (std::int64_t i = 0; i < matrix.elements(); ++i) {
      const bool in_tile = definition::tile_of(i / 80, i % 80, matrix, encoding().tile) ==
                           definition::tile_of(kRow, kCol, matrix, encoding().tile);
      const bool is_nan = whole_tile ? in_tile : i == kRow * 80 + kCol;
      if (is_nan)
        ASSERT_EQ(got[static_cast<std::size_t>(i)].bits, 0x7FFF);
      else if (!in_tile)
        ASSERT_EQ(got[static_cast<std::size_t>(i)].bits, finite[static_cast<std::size_t>(i)].bits);
      else
        ASSERT_FALSE(std::isnan(static_cast<float>(got[static_cast<std::size_t>(i)])));
    }
  }
}

}  // namespace
}  // namespace tessera::quant
