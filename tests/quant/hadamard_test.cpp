// Checks the Hadamard transform: its matrix, the order of its sums, and that products over tokens do not change.
#include "tessera/quant/formats/hadamard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string_view>

#include "tests/quant/matrices.h"
#include "tests/quant/values.h"

namespace tessera::quant {
namespace {

constexpr std::string_view kPublishedSigns = "+++-+------+-+--";

using SixteenValues = std::array<float, kHadamard>;

SixteenValues transformed(const SixteenValues& values) {
  float x[kHadamard];
  std::copy(values.begin(), values.end(), x);
  hadamard_sums(x);
  for (float& value : x) value *= kHadamardFactor;
  return std::to_array(x);
}

TEST(Hadamard, OfAUnitVectorIsARowOfTheMatrix) {
  for (std::size_t i = 0; i < kHadamard; ++i) {
    SixteenValues unit{};
    unit[i] = 4;
    const SixteenValues row = transformed(unit);
    for (std::size_t j = 0; j < kHadamard; ++j) {
      const float sign = (kPublishedSigns[i] == '-') != (std::popcount(i & j) % 2 == 1) ? -1.0F : 1.0F;
      EXPECT_EQ(row[j], sign) << i << ", " << j;
    }
  }
}

// Returns x H, from the halves of x: (a, b) H = (a H + b H, a H - b H).
std::vector<float> by_halves(const std::vector<float>& x) {
  if (x.size() == 1) return x;
  const auto middle = x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2);
  const std::vector<float> a = by_halves({x.begin(), middle}), b = by_halves({middle, x.end()});
  std::vector<float> result;
  for (std::size_t i = 0; i < a.size(); ++i) result.push_back(a[i] + b[i]);
  for (std::size_t i = 0; i < a.size(); ++i) result.push_back(a[i] - b[i]);
  return result;
}

// The magnitudes differ so much that another order of the sums gives other bits.
TEST(Hadamard, AddsNeighboursFirst) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    const std::vector<float> values = random_values(kHadamard, seed);
    std::vector<float> with_signs = values;
    for (std::size_t i = 0; i < kHadamard; ++i)
      if (kPublishedSigns[i] == '-') with_signs[i] = -with_signs[i];
    SixteenValues x{};
    std::copy(values.begin(), values.end(), x.begin());
    std::vector<float> expected = by_halves(with_signs);
    for (float& value : expected) value *= 0.25F;
    const SixteenValues got = transformed(x);
    EXPECT_TRUE(same_bits(std::vector<float>(got.begin(), got.end()), expected));
  }
}

// A transformed element has an error of at most 4 * 2^-24 * sum|x| / 4: four additions, each of at most sum|x|. The
// product of two groups has 16 terms, each with the errors of both factors, and a factor is at most sum|x| / 4.
TEST(Hadamard, KeepsProductsOverTokens) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    const std::vector<float> values = random_values(2 * kHadamard, 1000 + seed);
    SixteenValues a{}, b{};
    std::copy_n(values.begin(), kHadamard, a.begin());
    std::copy_n(values.begin() + kHadamard, kHadamard, b.begin());
    const SixteenValues to_a = transformed(a), to_b = transformed(b);
    double product = 0, expected = 0, sum_a = 0, sum_b = 0;
    for (std::size_t i = 0; i < kHadamard; ++i) {
      product += static_cast<double>(to_a[i]) * static_cast<double>(to_b[i]);
      expected += static_cast<double>(a[i]) * static_cast<double>(b[i]);
      sum_a += std::fabs(static_cast<double>(a[i]));
      sum_b += std::fabs(static_cast<double>(b[i]));
    }
    EXPECT_NEAR(product, expected, 0x1p-21 * 1.01 * sum_a * sum_b);
  }
}

TEST(Hadamard, OfColumnsAddsRowsOfZeros) {
  for (const Extent matrix : {Extent{1, 1}, Extent{15, 3}, Extent{16, 5}, Extent{33, 7}, Extent{0, 4}}) {
    const auto values = rounded_values(random_values(matrix.elements(), 7));
    const Extent wide = transformed_extent(matrix);
    EXPECT_EQ(wide.rows, (matrix.rows + 15) / 16 * 16);
    std::vector<bfloat16> got(static_cast<std::size_t>(wide.elements())), expected = got;
    transform_columns(values.data(), matrix, got.data());
    for (std::int64_t first = 0; first < wide.rows; first += kHadamard)
      for (std::int64_t col = 0; col < matrix.cols; ++col) {
        SixteenValues x{};
        for (std::int64_t row = first; row < std::min<std::int64_t>(first + kHadamard, matrix.rows); ++row)
          x[static_cast<std::size_t>(row - first)] =
              static_cast<float>(values[static_cast<std::size_t>(row * matrix.cols + col)]);
        const SixteenValues of_group = transformed(x);
        for (std::int64_t row = 0; row < kHadamard; ++row)
          expected[static_cast<std::size_t>((first + row) * matrix.cols + col)] =
              bfloat16(of_group[static_cast<std::size_t>(row)]);
      }
    EXPECT_TRUE(same_bits(got, expected));
  }
}

TEST(Hadamard, OfColumnsKeepsValuesThatAreNotFiniteInTheirGroup) {
  const Extent matrix{.rows = 40, .cols = 3};
  for (const float special : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    auto values = rounded_values(random_values(matrix.elements(), 8));
    values[20 * 3 + 1] = bfloat16(special);
    std::vector<bfloat16> got(static_cast<std::size_t>(transformed_extent(matrix).elements()));
    transform_columns(values.data(), matrix, got.data());
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(std::isfinite(static_cast<float>(got[i])), i / 48 != 1 || i % 3 != 1) << i;
  }
}

}  // namespace
}  // namespace tessera::quant
