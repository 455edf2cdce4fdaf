// Compares encodings of elements and of E8M0 with the values of their codes, for every bf16 number, every tie, and fp32
// patterns of all exponents.
#include "tessera/quant/formats/minifloat.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tessera/quant/formats/e8m0.h"
#include "tessera/quant/formats/encoding.h"
#include "tests/quant/definition.h"

namespace tessera::quant {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class Elements : public testing::TestWithParam<Element> {};
INSTANTIATE_TEST_SUITE_P(Types, Elements, testing::Values(Element::e4m3, Element::e5m2, Element::e2m1));

float of_bits(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}

// Tests both signs.
testing::AssertionResult is_nearest(Element element, float value) {
  for (const float signed_value : {value, -value}) {
    const int got = encode(element, signed_value), expected = definition::encode(element, signed_value);
    if (got != expected)
      return testing::AssertionFailure() << std::hexfloat << signed_value << " gives " << got << ", not " << expected;
  }
  return testing::AssertionSuccess();
}

TEST_P(Elements, EveryCodeHasTheValueOfItsBits) {
  const int codes = GetParam() == Element::e2m1 ? 16 : 256;
  for (int code = 0; code < codes; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    const double expected = definition::decode(GetParam(), byte);
    const float got = decode(GetParam(), byte);
    if (std::isnan(expected))
      EXPECT_TRUE(std::isnan(got)) << code;
    else
      EXPECT_EQ(std::bit_cast<std::uint64_t>(static_cast<double>(got)), std::bit_cast<std::uint64_t>(expected)) << code;
  }
  EXPECT_EQ(static_cast<double>(greatest_of(GetParam())), definition::type_of(GetParam()).greatest());
}

TEST_P(Elements, EveryFiniteCodeRoundTripsThroughFloat) {
  const definition::Type& type = definition::type_of(GetParam());
  for (std::size_t magnitude = 0; magnitude < type.magnitudes.size(); ++magnitude)
    for (const std::size_t code : {magnitude, magnitude + type.sign})
      EXPECT_EQ(encode(GetParam(), decode(GetParam(), static_cast<std::uint8_t>(code))), code);
}

TEST_P(Elements, TiesRoundToEvenAndTheirNeighboursToNearest) {
  const std::vector<double>& magnitudes = definition::type_of(GetParam()).magnitudes;
  for (std::size_t code = 0; code + 1 < magnitudes.size(); ++code) {
    const auto middle = static_cast<float>((magnitudes[code] + magnitudes[code + 1]) / 2);
    EXPECT_EQ(encode(GetParam(), middle), code + code % 2);
    EXPECT_EQ(encode(GetParam(), std::nextafter(middle, 0.0F)), code);
    EXPECT_EQ(encode(GetParam(), std::nextafter(middle, kInfinity)), code + 1);
    for (const float value : {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, kInfinity)})
      ASSERT_TRUE(is_nearest(GetParam(), value));
  }
}

TEST_P(Elements, EveryBfloat16GivesTheNearestCode) {
  for (std::uint32_t bits = 0; bits < 0x8000; ++bits) ASSERT_TRUE(is_nearest(GetParam(), of_bits(bits << 16)));
}

TEST_P(Elements, PatternsOfFp32GiveTheNearestCode) {
  for (std::uint64_t bits = 0; bits < 0x80000000; bits += 1511)
    ASSERT_TRUE(is_nearest(GetParam(), of_bits(bits & 0x7FFFFFFF)));
}

// The patterns above rarely have an exponent within the range of a small type.
TEST_P(Elements, PatternsNearTheTypesRangeGiveTheNearestCode) {
  const float greatest = greatest_of(GetParam());
  const auto last = std::bit_cast<std::uint32_t>(greatest * 2);
  for (std::uint32_t bits = std::bit_cast<std::uint32_t>(greatest * 0x1p-34F); bits < last; bits += 211)
    ASSERT_TRUE(is_nearest(GetParam(), of_bits(bits)));
}

struct Golden {
  Element element;
  float value;
  int code;
};

TEST(ElementGolden, SpecialValues) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), tiny = std::numeric_limits<float>::denorm_min();
  const std::vector<Golden> expected{
      {Element::e4m3, 448, 0x7E},        {Element::e4m3, nan, 0x7F},        {Element::e4m3, -nan, 0x7F},
      {Element::e4m3, kInfinity, 0x7E},  {Element::e4m3, -kInfinity, 0xFE}, {Element::e4m3, 464, 0x7E},
      {Element::e4m3, 465, 0x7E},        {Element::e4m3, -FLT_MAX, 0xFE},   {Element::e4m3, -0.0F, 0x80},
      {Element::e4m3, 0x1p-9F, 0x01},    {Element::e4m3, 0x1p-10F, 0x00},   {Element::e4m3, -tiny, 0x80},
      {Element::e5m2, 57344, 0x7B},      {Element::e5m2, nan, 0x7F},        {Element::e5m2, kInfinity, 0x7B},
      {Element::e5m2, -kInfinity, 0xFB}, {Element::e5m2, 61440, 0x7B},      {Element::e5m2, 1e9F, 0x7B},
      {Element::e5m2, 0x1p-16F, 0x01},   {Element::e5m2, 0x1p-17F, 0x00},   {Element::e2m1, nan, 0x7},
      {Element::e2m1, -nan, 0x7},        {Element::e2m1, kInfinity, 0x7},   {Element::e2m1, -kInfinity, 0xF},
      {Element::e2m1, -0.0F, 0x8},       {Element::e2m1, -tiny, 0x8},       {Element::e2m1, -0.25F, 0x8},
      {Element::e2m1, 1e30F, 0x7}};
  for (const Golden& golden : expected)
    EXPECT_EQ(encode(golden.element, golden.value), golden.code)
        << golden.value << " in type " << static_cast<int>(golden.element);
}

TEST(ElementGolden, TiesOfFourBits) {
  const std::vector<std::pair<float, float>> ties{{0.25F, 0}, {0.75F, 1}, {1.25F, 1}, {1.75F, 2},
                                                  {2.5F, 2},  {3.5F, 4},  {5, 4}};
  for (const auto& [value, expected] : ties) EXPECT_EQ(decode(Element::e2m1, encode(Element::e2m1, value)), expected);
}

TEST(E8M0, EveryCodeIsItsPowerOfTwo) {
  for (int code = 0; code < 255; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    EXPECT_EQ(static_cast<double>(E8M0::decode(byte)), std::ldexp(1.0, code - 127));
    EXPECT_EQ(static_cast<double>(E8M0::multiplier(byte)), std::ldexp(1.0, 127 - code));
    EXPECT_EQ(E8M0::encode_up(E8M0::decode(byte)), code);
  }
  EXPECT_TRUE(std::isnan(E8M0::decode(255)));
  EXPECT_TRUE(std::isnan(E8M0::multiplier(255)));
  EXPECT_EQ(std::bit_cast<std::uint32_t>(E8M0::decode(0)), 0x00400000U);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(E8M0::multiplier(254)), 0x00400000U);
}

TEST(E8M0, SpecialValues) {
  EXPECT_EQ(E8M0::encode_up(0), 0);
  EXPECT_EQ(E8M0::encode_up(of_bits(1)), 0);
  EXPECT_EQ(E8M0::encode_up(0x1p-127F), 0);
  EXPECT_EQ(E8M0::encode_up(of_bits(0x00400001)), 1);
  EXPECT_EQ(E8M0::encode_up(0x1p-126F), 1);
  EXPECT_EQ(E8M0::encode_up(0x1p127F), 254);
  EXPECT_EQ(E8M0::encode_up(FLT_MAX), 254);
  EXPECT_EQ(E8M0::encode_up(kInfinity), 254);
  EXPECT_EQ(E8M0::encode_up(std::numeric_limits<float>::quiet_NaN()), 255);
}

TEST(E8M0, PatternsOfFp32AreRoundedUp) {
  for (std::uint32_t bits = 0; bits < 0x80000000; bits += 43) {
    const float value = of_bits(bits);
    if (E8M0::encode_up(value) != definition::encode_e8m0(value)) FAIL() << std::hexfloat << value;
  }
}

}  // namespace
}  // namespace tessera::quant
