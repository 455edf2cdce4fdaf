// Compares the scales of tiles with the documented chain of operations and with golden values.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "tessera/quant/formats/encoding.h"
#include "tests/quant/definition.h"

namespace tessera::quant {
namespace {

constexpr Encoding kTensorE4M3{.element = Element::e4m3, .scale = Scale::fp32};
constexpr Encoding kTensorE5M2{.element = Element::e5m2, .scale = Scale::fp32};
constexpr Encoding kBlock128{.element = Element::e4m3, .scale = Scale::fp32, .tile = {128, 128}, .powers_of_two = true};
constexpr Encoding kMxfp8{.element = Element::e4m3, .scale = Scale::e8m0, .tile = {1, 32}};
constexpr Encoding kNvfp4{.element = Element::e2m1, .scale = Scale::e4m3, .tile = {16, 16}};

bool is_as_defined(const Encoding& encoding, float amax, float tensor_amax) {
  const TileScale got = tile_scale(encoding, amax, tensor_amax);
  const definition::Scales expected = definition::tile_scales(encoding, amax, tensor_amax);
  const float decoded = decode_scale(encoding.scale, got.stored, tensor_amax);
  return static_cast<double>(got.multiplier) == expected.multiplier && got.stored == expected.stored &&
         (static_cast<double>(decoded) == expected.decode || (std::isnan(decoded) && std::isnan(expected.decode)));
}

// Tests every n-th fp32 pattern that is not negative, including NaN and infinity.
void expect_as_defined(const Encoding& encoding, std::uint32_t step) {
  for (std::uint32_t bits = 0; bits < 0x80000000; bits += step) {
    const auto amax = std::bit_cast<float>(bits);
    if (!std::isnan(amax) && !is_as_defined(encoding, amax, amax)) FAIL() << std::hexfloat << amax;
  }
}

TEST(TileScale, OfFp8MatchesTheDefinition) {
  expect_as_defined(kTensorE4M3, 211);
  expect_as_defined(kTensorE5M2, 223);
  expect_as_defined(kBlock128, 227);
}

TEST(TileScale, OfFp8IsOneForUnusableAmaxes) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const float amax : {0.0F, infinity, nan})
    for (const Encoding& encoding : {kTensorE4M3, kTensorE5M2, kBlock128}) {
      EXPECT_EQ(tile_scale(encoding, amax, 0).multiplier, 1);
      EXPECT_EQ(std::bit_cast<float>(tile_scale(encoding, amax, 0).stored), 1);
    }
}

TEST(TileScale, OfFp8IsFiniteForTheSmallestAmax) {
  const float least = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(tile_scale(kTensorE4M3, least, 0).multiplier, FLT_MAX);
  EXPECT_EQ(std::bit_cast<float>(tile_scale(kTensorE4M3, least, 0).stored), 1 / FLT_MAX);
  EXPECT_EQ(tile_scale(kBlock128, least, 0).multiplier, 0x1p127F);
}

// Tests amaxes from the greatest bf16 number downwards. Values that fp8_block and mxfp8 round up to 2^128 are infinite.
TEST(TileScale, OfAFiniteAmaxNeverDecodesToNaN) {
  for (const Encoding& encoding : {kTensorE4M3, kTensorE5M2, kBlock128, kMxfp8, kNvfp4})
    for (std::uint32_t bits = 0x7F7F; bits > 0x7A00; --bits) {
      const auto amax = std::bit_cast<float>(bits << 16);
      const TileScale scale = tile_scale(encoding, amax, amax);
      const float decoded = decode_scale(encoding.scale, scale.stored, amax);
      const float value = decoded * decode(encoding.element, encode(encoding.element, amax * scale.multiplier));
      ASSERT_TRUE(std::isfinite(decoded)) << std::hexfloat << amax;
      ASSERT_FALSE(std::isnan(value)) << std::hexfloat << amax;
      if (!encoding.powers_of_two && encoding.scale != Scale::e8m0) {
        // Half a unit of the element, and half a unit of the scale of nvfp4.
        EXPECT_NEAR(value / amax, 1, 0x1p-4 + 0x1p-10) << std::hexfloat << amax;
      }
    }
}

TEST(TileScale, OfAnOperandIsNaNForAnInfiniteAmax) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Encoding& encoding : {kTensorE4M3, kTensorE5M2, kBlock128, kMxfp8, kNvfp4}) {
    const TileScale scale = operand_scale(encoding, infinity, infinity);
    EXPECT_EQ(scale.multiplier, tile_scale(encoding, infinity, infinity).multiplier);
    EXPECT_TRUE(std::isnan(decode_scale(encoding.scale, scale.stored, infinity)));
    for (const float amax : {0.0F, 1.0F, 3e38F, FLT_MAX})
      EXPECT_EQ(operand_scale(encoding, amax, amax).stored, tile_scale(encoding, amax, amax).stored);
  }
}

TEST(TileScale, OfFp8RoundsDownToPowersOfTwo) {
  EXPECT_EQ(tile_scale(kBlock128, 1.0F, 0).multiplier, 256);
  EXPECT_EQ(tile_scale(kBlock128, 1.75F, 0).multiplier, 256);
  EXPECT_EQ(tile_scale(kBlock128, std::nextafter(1.75F, 2.0F), 0).multiplier, 128);
  EXPECT_EQ(tile_scale(kBlock128, 448.0F, 0).multiplier, 1);
}

TEST(TileScale, OfMxfp8MatchesTheDefinition) {
  expect_as_defined(kMxfp8, 101);
}

TEST(TileScale, OfMxfp8HasTheGoldenCodes) {
  for (int k = -127; k <= 119; ++k)
    EXPECT_EQ(tile_scale(kMxfp8, std::ldexp(448.0F, k), 0).stored, static_cast<std::uint32_t>(127 + k)) << k;
  EXPECT_EQ(tile_scale(kMxfp8, std::nextafter(448.0F, 1000.0F), 0).stored, 128U);
  EXPECT_EQ(tile_scale(kMxfp8, 1.0F, 0).stored, 119U);
  EXPECT_EQ(tile_scale(kMxfp8, 1.75F, 0).stored, 119U);
  EXPECT_EQ(tile_scale(kMxfp8, 1.7578125F, 0).stored, 120U);
  EXPECT_EQ(tile_scale(kMxfp8, 0.0F, 0).stored, 0U);
  EXPECT_EQ(tile_scale(kMxfp8, std::numeric_limits<float>::infinity(), 0).stored, 254U);
}

TEST(TileScale, OfNvfp4HasTheGoldenCodesAndMultipliers) {
  struct Golden {
    float amax;
    std::uint32_t code;
    float multiplier;
  };
  for (const Golden& golden : {Golden{3, 0x7E, 2}, Golden{1, 0x71, 6.22222185F}, Golden{0.1F, 0x57, 59.7333298F},
                               Golden{1e-3F, 0x22, 5734.3999F}, Golden{1e-6F, 0x00, FLT_MAX}}) {
    const TileScale scale = tile_scale(kNvfp4, golden.amax, 3.0F);
    EXPECT_EQ(scale.stored, golden.code) << golden.amax;
    EXPECT_EQ(scale.multiplier, golden.multiplier) << golden.amax;
  }
  EXPECT_EQ(decode_scale(Scale::e4m3, 0x7E, 3.0F), 0.5F);
}

TEST(TileScale, OfNvfp4MatchesTheDefinitionForTheGreatestTile) {
  expect_as_defined(kNvfp4, 1013);
}

TEST(TileScale, OfNvfp4MatchesTheDefinitionForEveryRatioToTheTensorAmax) {
  std::mt19937 random(1);
  const auto fraction = [&] { return std::bit_cast<float>(0x3F800000U | static_cast<std::uint32_t>(random()) >> 9); };
  for (int i = 0; i < 2'000'000; ++i) {
    const float tensor_amax = std::ldexp(fraction(), static_cast<int>(random() % 250) - 130);
    const float smaller = std::ldexp(tensor_amax * fraction(), -static_cast<int>(random() % 24));
    const float amax = std::min(smaller, tensor_amax);
    ASSERT_TRUE(is_as_defined(kNvfp4, amax, tensor_amax)) << std::hexfloat << amax << " of " << tensor_amax;
  }
}

// If the scale is between two codes, the result depends on the order and the rounding of each operation.
TEST(TileScale, OfNvfp4MatchesTheDefinitionAroundEveryTieOfTheScale) {
  const std::vector<double>& codes = definition::type_of(Element::e4m3).magnitudes;
  std::mt19937 random(2);
  for (int i = 0; i < 1000; ++i) {
    const float tensor_amax = std::bit_cast<float>(0x3F800000U | static_cast<std::uint32_t>(random()) >> 9);
    for (std::size_t code = 0; code + 1 < codes.size(); ++code) {
      const double tie = (codes[code] + codes[code + 1]) / 2;
      auto amax = static_cast<float>(tie * 6 * static_cast<double>(tensor_amax) / 2688);
      for (int step = 0; step < 2; ++step) amax = std::nextafter(amax, 0.0F);
      for (int step = 0; step < 5; ++step, amax = std::nextafter(amax, FLT_MAX))
        ASSERT_TRUE(is_as_defined(kNvfp4, amax, tensor_amax)) << std::hexfloat << amax << " of " << tensor_amax;
    }
  }
}

TEST(TileScale, OfNvfp4MatchesTheDefinitionAtTheLimits) {
  const float least = std::numeric_limits<float>::denorm_min(), infinity = std::numeric_limits<float>::infinity();
  for (const float tensor_amax : {0.0F, least, 0x1p-126F, 7.8e-36F, 8e-36F, 1.0F, 7.6e35F, FLT_MAX, infinity})
    for (const float amax : {0.0F, least, 0x1p-140F, 0x1p-126F, 1.0F, 3.0F, FLT_MAX, infinity})
      EXPECT_TRUE(amax > tensor_amax || is_as_defined(kNvfp4, amax, tensor_amax))
          << std::hexfloat << amax << " of " << tensor_amax;
}

// The scale of the greatest tile may be rounded to a value above 448. A conversion without saturation gives NaN there.
TEST(TileScale, OfNvfp4SaturatesForTheGreatestTile) {
  int above = 0;
  for (std::uint32_t bits = 0x3F800000; bits < 0x40000000; bits += 997) {
    const auto amax = std::bit_cast<float>(bits);
    ASSERT_EQ(tile_scale(kNvfp4, amax, amax).stored, 0x7EU) << std::hexfloat << amax;
    above += amax * (nvfp4_multiplier(amax) * (1.0F / 6.0F)) > 448 ? 1 : 0;
  }
  const double share = above / (8388608.0 / 997);
  EXPECT_NEAR(share, 0.47, 0.05);
}

}  // namespace
}  // namespace tessera::quant
