// Checks that arithmetic on whole vectors on the host gives the same bits as on single elements.
#include "tessera/quant/cuda/vector_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tessera/quant/cuda/operand_scales.h"

namespace tessera::quant {
namespace {

TEST(VectorCodes, OfFourBitsMatchTheDefinition) {
  for (std::uint64_t word = 0; word < (std::uint64_t{1} << 32); word += 509) {
    const bool is_nan = (word & 0x7FFFFFFF) > 0x7F800000;
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(word | (is_nan ? 0x00400000 : 0)));
    ASSERT_EQ(encode_e2m1(value), E2M1::encode(value)) << std::hexfloat << value;
  }
  for (const float tie : {0.0F, 0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F, 6.0F, 7.0F, INFINITY, NAN})
    for (const float value : {tie, std::nextafter(tie, 0.0F), std::nextafter(tie, 9.0F)})
      for (const float signed_value : {value, -value})
        ASSERT_EQ(encode_e2m1(signed_value), E2M1::encode(signed_value)) << std::hexfloat << signed_value;
}

template <Element kElement>
void check_vectors() {
  constexpr int kBits = kElement == Element::e2m1 ? 4 : 8;
  for (std::uint32_t first = 0; first < (1U << kBits); first += 8) {
    std::uint32_t words[kCodeWords<kElement>] = {};
    for (std::uint32_t i = 0; i < 8; ++i) words[i * kBits / 32] |= (first + i) << (i * kBits % 32);
    float values[8];
    decode_vector<kElement>(words, values);
    for (std::uint32_t i = 0; i < 8; ++i) {
      const float expected = decode(kElement, static_cast<std::uint8_t>(first + i));
      if (std::isnan(expected))
        EXPECT_TRUE(std::isnan(values[i]));
      else
        EXPECT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(expected));
    }
    std::uint32_t again[kCodeWords<kElement>];
    encode_vector<kElement>(values, again);
    for (std::uint32_t i = 0; i < 8; ++i)
      EXPECT_EQ(again[i * kBits / 32] >> (i * kBits % 32) & ((1U << kBits) - 1), encode(kElement, values[i]));
  }
}

TEST(VectorCodes, AreInMemoryOrder) {
  check_vectors<Element::e4m3>();
  check_vectors<Element::e5m2>();
  check_vectors<Element::e2m1>();
}

TEST(VectorCodes, GreaterMagnitudesIgnoreNans) {
  const std::uint32_t pair = round_pair(-3, NAN), amaxes = round_pair(2, 1);
  const std::uint32_t greater = greater_magnitudes(amaxes, pair);
  EXPECT_EQ(low_half(greater), 3);
  EXPECT_EQ(high_half(greater), 1);
}

template <Element kElement>
void check_rounding() {
  const auto check = [](float value) {
    const float expected = decode(kElement, encode(kElement, value));
    ASSERT_EQ(round_magnitude<kElement>(value), expected) << std::hexfloat << value;
  };
  for (std::uint32_t word = 0; word <= 0x7F800000; word += 4093) check(std::bit_cast<float>(word));
  for (std::uint32_t code = 0; code < 0x7E; ++code) {
    const float number = decode(kElement, static_cast<std::uint8_t>(code)),
                next = decode(kElement, static_cast<std::uint8_t>(code + 1)), tie = number / 2 + next / 2;
    if (number < 0 || !(next > number) || std::isinf(next)) continue;
    for (const float value : {number, tie, std::nextafter(tie, number), std::nextafter(tie, next)}) check(value);
  }
  check(INFINITY);
  EXPECT_EQ(round_magnitude<kElement>(NAN), greatest_of(kElement));
}

TEST(VectorCodes, RoundingGivesTheDecodedCode) {
  check_rounding<Element::e4m3>();
  check_rounding<Element::e5m2>();
  check_rounding<Element::e2m1>();
}

TEST(VectorCodes, GreaterOrNanKeepsNans) {
  const std::uint32_t amaxes = round_pair(2, 1);
  EXPECT_EQ(greater_or_nan(amaxes, round_pair(-3, -INFINITY)), round_pair(3, INFINITY));
  EXPECT_EQ(greater_or_nan(amaxes, 0xFFC1'3F00), 0x7FFF'4000U);  // a NaN and 0.5
  EXPECT_EQ(greater_or_nan(0x7FFF'4000, round_pair(5, INFINITY)), 0x7FFF'40A0U);
  EXPECT_EQ(greater_half(round_pair(2, 7)), 7);
  EXPECT_EQ(greater_half(round_pair(8, 7)), 8);
  EXPECT_TRUE(std::isnan(greater_half(0x4000'7FFF)));
  EXPECT_TRUE(std::isnan(greater_half(0x7FFF'4000)));
}

// Compares scales of operands with encoding.h, for amaxes of every kind. scale_of(amax, tensor_amax) is the function
// under test.
template <typename ScaleOf>
void check_operand_scales(const Encoding& encoding, ScaleOf scale_of) {
  for (const float tensor_amax : {0.0F, 0x1p-133F, 1e-30F, 0.37F, 3.0F, 1e30F, 3e38F, INFINITY})
    for (std::uint32_t bits = 0; bits <= 0x7FC0; ++bits) {
      const auto amax = std::bit_cast<float>(bits << 16);
      const OperandScale got = scale_of(amax, tensor_amax);
      const TileScale expected = operand_scale(encoding, amax, tensor_amax);
      const float factor = decoded_factor(encoding, expected.stored);
      const auto word = [](float value) { return std::isnan(value) ? 0U : std::bit_cast<std::uint32_t>(value); };
      ASSERT_EQ(got.stored, expected.stored) << amax << ", " << tensor_amax;
      ASSERT_EQ(word(got.multiplier), word(expected.multiplier)) << amax << ", " << tensor_amax;
      ASSERT_EQ(word(got.factor), word(factor)) << amax << ", " << tensor_amax;
    }
}

TEST(VectorCodes, ScalesOfOperandsMatchTheDefinition) {
  check_operand_scales({.element = Element::e2m1, .scale = Scale::e4m3, .tile = {1, 16}},
                       [](float amax, float tensor_amax) {
                         const Nvfp4Scales scales(tensor_amax);
                         return scales.of(scales.stored_of(amax));
                       });
  check_operand_scales({.element = Element::e4m3, .scale = Scale::e8m0, .tile = {1, 32}},
                       [](float amax, float) { return mxfp8_scale(amax); });
}

TEST(VectorCodes, SquaresOfBytesAreTransposed) {
  std::uint32_t words[4] = {};
  for (std::uint32_t i = 0; i < 16; ++i) words[i / 4] |= (i + 1) << (8 * (i % 4));
  transpose_bytes(words);
  for (std::uint32_t i = 0; i < 16; ++i) EXPECT_EQ(words[i % 4] >> (8 * (i / 4)) & 0xFF, i + 1);
}

}  // namespace
}  // namespace tessera::quant
