// Tests bfloat16 and element types.
#include "tessera/quant/dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "tessera/base/error.h"
#include "tessera/quant/bfloat16.h"

namespace tessera::quant {
namespace {

float from_bits(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}

TEST(Bfloat16, EveryValueRoundTripsThroughFloat) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    bfloat16 value;
    value.bits = static_cast<std::uint16_t>(bits);
    const auto wide = static_cast<float>(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(bfloat16(wide))));
      continue;
    }
    ASSERT_EQ(bfloat16(wide).bits, bits);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(wide), bits << 16);
  }
}

// Tests three floats between each bf16 value and the next: below the midpoint (rounds down), above (rounds up), and the
// midpoint (rounds to even).
TEST(Bfloat16, RoundsToNearestEvenBetweenAllNeighbours) {
  for (std::uint32_t high = 0; high < 0x10000; ++high) {
    if ((high & 0x7FFF) >= 0x7F80) continue;  // infinity, NaN
    const std::uint32_t low = high << 16;
    ASSERT_EQ(bfloat16::round(from_bits(low | 0x0001)), high);
    ASSERT_EQ(bfloat16::round(from_bits(low | 0x7FFF)), high);
    ASSERT_EQ(bfloat16::round(from_bits(low | 0x8000)), high + high % 2);
    ASSERT_EQ(bfloat16::round(from_bits(low | 0x8001)), high + 1);
    ASSERT_EQ(bfloat16::round(from_bits(low | 0xFFFF)), high + 1);
  }
}

TEST(Bfloat16, KeepsNaN) {
  // Rounding up the low bits of these values would give infinity or zero.
  for (const std::uint32_t bits : {0x7F800001u, 0x7FBFFFFFu, 0x7FFFFFFFu, 0xFF800001u, 0xFFFFFFFFu, 0x7FC00000u}) {
    const bfloat16 value(from_bits(bits));
    EXPECT_TRUE(std::isnan(static_cast<float>(value))) << bits;
    EXPECT_EQ(value.bits >> 15, bits >> 31);
  }
  EXPECT_EQ(bfloat16(std::numeric_limits<float>::infinity()).bits, 0x7F80);
  EXPECT_EQ(bfloat16(-0.0f).bits, 0x8000);
  EXPECT_EQ(bfloat16(std::numeric_limits<float>::max()).bits, 0x7F80);
}

TEST(DType, NamesParseToTheSameType) {
  std::set<std::string_view> names;
  for (const DType type : {DType::u8, DType::i32, DType::i64, DType::bf16, DType::fp32, DType::fp64}) {
    EXPECT_EQ(parse_dtype(name_of(type)), type);
    names.insert(name_of(type));
  }
  EXPECT_EQ(names.size(), 6u);
  try {
    parse_dtype("fp16");
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("fp16"), testing::HasSubstr("bf16")));
  }
}

TEST(DType, SizesAndAccumulators) {
  EXPECT_EQ(size_of(DType::u8), sizeof(std::uint8_t));
  EXPECT_EQ(size_of(DType::bf16), sizeof(bfloat16));
  EXPECT_EQ(size_of(DType::i32), sizeof(std::int32_t));
  EXPECT_EQ(size_of(DType::fp32), sizeof(float));
  EXPECT_EQ(size_of(DType::i64), sizeof(std::int64_t));
  EXPECT_EQ(size_of(DType::fp64), sizeof(double));
  EXPECT_EQ(accumulator_of(DType::bf16), DType::fp32);
  EXPECT_EQ(accumulator_of(DType::fp32), DType::fp32);
  EXPECT_EQ(accumulator_of(DType::fp64), DType::fp64);
  EXPECT_TRUE(is_floating(DType::bf16));
  EXPECT_FALSE(is_floating(DType::i64));
}

}  // namespace
}  // namespace tessera::quant
