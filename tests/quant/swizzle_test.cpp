// Tests the scales that a GEMM reads: extents, padding and order.
#include "tessera/quant/formats/swizzle.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tests/quant/matrices.h"

namespace tessera::quant {
namespace {

constexpr Encoding kWeight4{Element::e2m1, Scale::e4m3, {16, 16}};
constexpr Encoding kRow4{Element::e2m1, Scale::e4m3, {1, 16}};
constexpr Encoding kRow8{Element::e4m3, Scale::e8m0, {1, 32}};
constexpr Encoding kColumn8{Element::e4m3, Scale::e8m0, {32, 1}};
constexpr Encoding kScalesOfBytes[] = {kWeight4, kRow4, kRow8, kColumn8};
constexpr Extent kMatrices[] = {{1, 2}, {5, 16}, {17, 80}, {100, 288}, {129, 688}, {256, 2048}, {400, 688}};

TEST(PaddedScales, HaveTheExtentOfTheGemm) {
  EXPECT_EQ(padded_scale_extent(kWeight4, {100, 288}), (Extent{128, 20}));
  EXPECT_EQ(padded_scale_extent(kWeight4, {129, 688}), (Extent{256, 44}));
  EXPECT_EQ(padded_scale_extent(kRow4, {129, 288}), (Extent{256, 20}));
  EXPECT_EQ(padded_scale_extent(kRow8, {129, 288}), (Extent{256, 12}));
  EXPECT_EQ(padded_scale_extent(kRow8, {128, 688}), (Extent{128, 24}));
  EXPECT_EQ(padded_scale_extent(kColumn8, {129, 288}), (Extent{8, 384}));
  EXPECT_EQ(padded_scale_extent(kColumn8, {100, 128}), (Extent{4, 128}));
}

TEST(PaddedScales, RejectOtherScaleTypesAndTiles) {
  EXPECT_THROW(padded_scale_extent({Element::e4m3, Scale::fp32, {1, 128}}, {128, 128}), Error);
  EXPECT_THROW(padded_scale_extent({Element::e4m3, Scale::e8m0, {0, 0}}, {128, 128}), Error);
  EXPECT_THROW(padded_scale_extent({Element::e4m3, Scale::e8m0, {16, 32}}, {128, 128}), Error);
  EXPECT_THROW(padded_scale_extent({Element::e4m3, Scale::e8m0, {1, 1}}, {128, 128}), Error);
}

std::vector<std::uint8_t> padded(const std::vector<std::uint8_t>& scales, Extent matrix, const Encoding& encoding) {
  std::vector<std::uint8_t> result(static_cast<std::size_t>(padded_scale_extent(encoding, matrix).elements()), 0xA5);
  pad_scales(scales.data(), matrix, encoding, result.data());
  return result;
}

// No scale is zero, so padding is distinguishable.
std::vector<std::uint8_t> scales_for(Extent matrix, const Encoding& encoding) {
  std::vector<std::uint8_t> scales(static_cast<std::size_t>(scale_extent(encoding, matrix).elements()));
  for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::uint8_t>(1 + i * 7 % 251);
  return scales;
}

// Checks the scale of every element, and counts the entries that belong to no element.
TEST(PaddedScales, HaveTheScaleOfEveryElementAndZerosAsPadding) {
  for (const Encoding& encoding : kScalesOfBytes)
    for (const Extent& matrix : kMatrices) {
      const std::vector<std::uint8_t> scales = scales_for(matrix, encoding), got = padded(scales, matrix, encoding);
      const Extent extent = padded_scale_extent(encoding, matrix);
      std::vector<bool> used(got.size());
      for (std::int64_t row = 0; row < matrix.rows; ++row)
        for (std::int64_t col = 0; col < matrix.cols; ++col) {
          const bool along_rows = encoding == kColumn8;
          const auto at = static_cast<std::size_t>(along_rows ? row / 32 * extent.cols + col
                                                              : row * extent.cols + col / encoding.tile.cols);
          ASSERT_EQ(got[at], scales[definition::tile_of(row, col, matrix, encoding.tile)]) << row << ", " << col;
          used[at] = true;
        }
      for (std::size_t at = 0; at < got.size(); ++at) ASSERT_TRUE(used[at] || got[at] == 0) << at;
    }
}

// The columnwise scales of a weight are the rowwise scales of the transposed weight.
TEST(PaddedScales, OfColumnwiseWeightsEqualTheTransposedMatrix) {
  const Extent matrix{.rows = 100, .cols = 288}, flipped{.rows = 288, .cols = 100};
  const std::vector<float> values = random_values(matrix.elements(), 31);
  Stored source = quantized(values, matrix, kWeight4), target = room_for(kWeight4, flipped);
  transpose({.source = source.view(), .matrix = matrix, .encoding = kWeight4, .target = target.view()});
  const std::vector<std::uint8_t> got = padded(target.scales, flipped, kWeight4);
  for (std::int64_t row = 0; row < flipped.rows; ++row)
    for (std::int64_t block = 0; block < 7; ++block)
      ASSERT_EQ(got[static_cast<std::size_t>(row * 8 + block)],
                source.scales[static_cast<std::size_t>(block * 18 + row / 16)]);
}

TEST(Swizzle, HasTheOffsetsOfTheDocumentation) {
  EXPECT_EQ(swizzled_offset(0, 0, 20), 0);
  EXPECT_EQ(swizzled_offset(0, 3, 20), 3);
  EXPECT_EQ(swizzled_offset(0, 4, 20), 512);
  EXPECT_EQ(swizzled_offset(1, 0, 20), 16);
  EXPECT_EQ(swizzled_offset(31, 0, 20), 496);
  EXPECT_EQ(swizzled_offset(32, 0, 20), 4);
  EXPECT_EQ(swizzled_offset(127, 3, 20), 511);
  EXPECT_EQ(swizzled_offset(128, 0, 20), 5 * 512);
  EXPECT_EQ(swizzled_offset(128, 0, 18), 5 * 512);  // 18 blocks are padded to 20
  EXPECT_EQ(swizzled_offset(300, 17, 18), (2 * 5 + 4) * 512 + 12 * 16 + 1 * 4 + 1);
  EXPECT_EQ(swizzled_offset(std::int64_t{1} << 24, 0, 4096), std::int64_t{1} << 36);
}

TEST(Swizzle, PlacesRowwiseScalesAsDocumented) {
  for (const Encoding& encoding : {kWeight4, kRow4, kRow8})
    for (const Extent& matrix : kMatrices) {
      const std::vector<std::uint8_t> scales = padded(scales_for(matrix, encoding), matrix, encoding);
      const std::int64_t cols = padded_scale_extent(encoding, matrix).cols,
                         size = static_cast<std::int64_t>(scales.size());
      std::vector<std::uint8_t> got(scales.size(), 0xA5), back(scales.size(), 0xA5);
      swizzle_scales(scales.data(), matrix, encoding, got.data());
      for (std::int64_t at = 0; at < size; ++at) {
        const std::int64_t i = at / cols, j = at % cols;
        const std::int64_t offset = (i / 128 * ((cols + 3) / 4) + j / 4) * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4;
        back[static_cast<std::size_t>(at)] = got[static_cast<std::size_t>(offset)];
      }
      EXPECT_EQ(back, scales) << matrix.rows << " x " << matrix.cols;
    }
}

// Columnwise scales are transposed: the columns are the dimension that is padded to 128.
TEST(Swizzle, OfColumnwiseScalesEqualsTheTransposedScales) {
  for (const Extent& matrix : kMatrices) {
    const std::vector<std::uint8_t> scales = padded(scales_for(matrix, kColumn8), matrix, kColumn8);
    const Extent extent = padded_scale_extent(kColumn8, matrix);
    std::vector<std::uint8_t> across(scales.size()), got(scales.size(), 0xA5), expected(scales.size(), 0x5A);
    for (std::int64_t row = 0; row < extent.rows; ++row)
      for (std::int64_t col = 0; col < extent.cols; ++col)
        across[static_cast<std::size_t>(col * extent.rows + row)] =
            scales[static_cast<std::size_t>(row * extent.cols + col)];
    swizzle_scales(scales.data(), matrix, kColumn8, got.data());
    swizzle_scales(across.data(), {.rows = matrix.cols, .cols = matrix.rows}, kRow8, expected.data());
    EXPECT_EQ(got, expected) << matrix.rows << " x " << matrix.cols;
  }
}

}  // namespace
}  // namespace tessera::quant
