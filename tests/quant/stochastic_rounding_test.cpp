// Checks stochastic rounding: the definition of each element, the keys, and that the expected result is the value.
#include "tessera/quant/formats/stochastic_rounding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tessera/quant/formats/decoded.h"
#include "tests/quant/matrices.h"

namespace tessera::quant {
namespace {

constexpr RoundingSite kSite{.seed = 1234, .parameter = base::name_hash("layers.3.mlp.down.weight")};

// Returns the code from the definition, in fp64.
std::uint8_t randomly_encoded(float value, std::uint32_t bits) {
  const std::vector<double>& numbers = definition::type_of(Element::e2m1).magnitudes;
  const double magnitude = std::min(std::fabs(static_cast<double>(value)), 6.0);
  std::size_t code = 7;
  while (numbers[code] > magnitude) --code;
  if (numbers[code] < magnitude) {
    const double p = (magnitude - numbers[code]) / (numbers[code + 1] - numbers[code]);
    code += 65536 * p > bits ? 1 : 0;
  }
  return static_cast<std::uint8_t>(code + (std::signbit(value) ? 8 : 0));
}

TEST(StochasticRounding, OfEveryKindOfNumberMatchesTheDefinition) {
  std::mt19937 random(1);
  const auto check = [&](float value) {
    for (const std::uint32_t bits : {0U, 1U, 0x7FFFU, 0x8000U, 0xFFFFU, static_cast<std::uint32_t>(random() % 65536)})
      ASSERT_EQ(encode_e2m1_randomly(value, bits), randomly_encoded(value, bits))
          << std::hexfloat << value << ", bits " << bits;
  };
  for (std::uint64_t word = 0; word < (std::uint64_t{1} << 32); word += 30011)
    if ((word & 0x7FFFFFFF) <= 0x7F800000) check(std::bit_cast<float>(static_cast<std::uint32_t>(word)));
  for (int i = 0; i < 100000; ++i) check(std::ldexp(static_cast<float>(random() % 16777216), -21) - 4);
  for (const float edge : {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F})
    for (const float value : {edge, std::nextafter(edge, 9.0F), std::nextafter(edge, -9.0F)}) check(value);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float value : {nan, -nan}) EXPECT_EQ(encode_e2m1_randomly(value, 5), 7U);
}

// Golden values of a separate program in Python.
TEST(StochasticRounding, HasTheDocumentedKeys) {
  EXPECT_EQ(rounding_key(kSite), (base::PhiloxKey{0x18F29F0E, 0x45C076BF}));
  EXPECT_EQ(rounding_key(
                {.seed = 1234, .parameter = base::name_hash("layers.3.experts.down.weight"), .matrix = 5, .part = 2}),
            (base::PhiloxKey{0xC7C0C692, 0xADC29181}));
  const StochasticRounding rounding{.key = rounding_key(kSite), .first_token = (std::int64_t{1} << 32) + 70};
  const base::PhiloxCounter words = rounding_words(rounding, 9, 7, 3, RoundingSide::columns);
  EXPECT_EQ(words, (base::PhiloxCounter{0xCB6DA470, 0x9D072519, 0x821C8D58, 0x969A25C5}));
  EXPECT_EQ(rounding_bits(words, 0), 0xA470U);
  EXPECT_EQ(rounding_bits(words, 3), 0x9D07U);
  EXPECT_EQ(rounding_bits(words, 7), 0x969AU);
}

// The mean of 2^20 results has a standard error of (hi - lo) sqrt(p (1 - p) / 2^20).
TEST(StochasticRounding, IsUnbiased) {
  constexpr int kDraws = 1 << 20, kValues = 64;
  const StochasticRounding rounding{.key = rounding_key(kSite)};
  std::vector<std::uint32_t> bits;
  for (std::int64_t row = 0; row < kDraws / 1024; ++row)
    for (std::uint32_t group = 0; group < 1024 / kRoundedColumns; ++group) {
      const base::PhiloxCounter words = rounding_words(rounding, 1, row, group, RoundingSide::rows);
      for (int i = 0; i < kRoundedColumns; ++i) bits.push_back(rounding_bits(words, i));
    }
  const std::vector<double>& numbers = definition::type_of(Element::e2m1).magnitudes;
  for (int i = 0; i < kValues; ++i) {
    const double lo = numbers[static_cast<std::size_t>(i % 7)], hi = numbers[static_cast<std::size_t>(i % 7 + 1)];
    const double p = (i + 0.5) / kValues;
    const auto value = static_cast<float>(lo + p * (hi - lo));
    const auto least = static_cast<std::uint32_t>(i % 7);
    std::int64_t up = 0;
    for (const std::uint32_t of_draw : bits) up += encode_e2m1_randomly(value, of_draw) - least;
    const double mean = lo + (hi - lo) * static_cast<double>(up) / kDraws;
    EXPECT_NEAR(mean, static_cast<double>(value), 4 * (hi - lo) * std::sqrt(p * (1 - p) / kDraws)) << value;
  }
}

// An operand with stochastic rounding.
struct RandomOperand {
  Extent matrix{.rows = 33, .cols = 50};
  ScaleTile tile{1, 16};
  std::int64_t step = 5, first_token = 1000;
  RoundingSite site = kSite;

  std::vector<bfloat16> decoded(const std::vector<bfloat16>& values) const {
    std::vector<bfloat16> result(values.size());
    decode_operand({.values = values.data(),
                    .matrix = matrix,
                    .encoding = {.element = Element::e2m1, .scale = Scale::e4m3, .tile = tile},
                    .whole = 6 * 448,
                    .rounding = {.key = rounding_key(site), .step = &step, .first_token = first_token}},
                   result.data());
    return result;
  }
};

// Values up to 6, with one 6 in each tile: with the amax 6 * 448 of the matrix, the scale of each tile is 1.
std::vector<bfloat16> values_up_to_six(Extent matrix) {
  std::mt19937 random(3);
  std::vector<bfloat16> values;
  for (std::int64_t i = 0; i < matrix.elements(); ++i)
    values.push_back(bfloat16(i / matrix.cols % 16 == 0 || i % matrix.cols % 16 == 0
                                  ? 6.0F
                                  : std::ldexp(static_cast<float>(random() % 1024), -7) - 4));
  return values;
}

TEST(StochasticRounding, OfAnOperandTakesTheBitsOfEachElement) {
  for (const ScaleTile tile : {ScaleTile{1, 16}, ScaleTile{16, 1}, ScaleTile{16, 16}}) {
    const RandomOperand operand{.tile = tile};
    const std::vector<bfloat16> values = values_up_to_six(operand.matrix), got = operand.decoded(values);
    const base::PhiloxKey key = rounding_key(operand.site);
    for (std::int64_t row = 0; row < operand.matrix.rows; ++row)
      for (std::int64_t col = 0; col < operand.matrix.cols; ++col) {
        const base::PhiloxCounter words = base::philox(
            {static_cast<std::uint32_t>(col / 8), static_cast<std::uint32_t>(1000 + row), 5, tile.cols == 1 ? 1U : 0U},
            key);
        const std::uint32_t bits = words[static_cast<std::size_t>(col % 8 / 2)] >> (col % 2 * 16) & 0xFFFF;
        const auto i = static_cast<std::size_t>(row * operand.matrix.cols + col);
        const std::uint8_t code = randomly_encoded(static_cast<float>(values[i]), bits);
        ASSERT_EQ(static_cast<double>(static_cast<float>(got[i])), definition::decode(Element::e2m1, code)) << i;
      }
  }
}

TEST(StochasticRounding, OfAnotherPlaceOrStepDiffers) {
  const RandomOperand base;
  const std::vector<bfloat16> values = values_up_to_six(base.matrix);
  std::vector<RandomOperand> others(8, base);
  others[1].step = 6;
  others[2].first_token = 1001;
  others[3].tile = {16, 1};
  others[4].site.parameter = base::name_hash("layers.4.mlp.down.weight");
  others[5].site.matrix = 0;
  others[6].site.part = 1;
  others[7].site.seed = 1235;
  std::vector<std::vector<bfloat16>> results;
  for (const RandomOperand& other : others) results.push_back(other.decoded(values));
  EXPECT_EQ(std::memcmp(results[0].data(), base.decoded(values).data(), values.size() * sizeof(bfloat16)), 0);
  for (std::size_t a = 0; a < results.size(); ++a)
    for (std::size_t b = 0; b < a; ++b)
      EXPECT_NE(std::memcmp(results[a].data(), results[b].data(), values.size() * sizeof(bfloat16)), 0) << a << b;
}

// Chunks of tokens give the bits of the whole matrix.
TEST(StochasticRounding, DoesNotDependOnTheDivisionOfTokens) {
  const RandomOperand whole;
  const std::vector<bfloat16> values = values_up_to_six(whole.matrix), expected = whole.decoded(values);
  std::vector<bfloat16> joined;
  for (const auto& [first, rows] : {std::pair<std::int64_t, std::int64_t>{0, 13}, {13, 20}}) {
    RandomOperand chunk;
    chunk.matrix.rows = rows;
    chunk.first_token += first;
    const auto begin = values.begin() + first * whole.matrix.cols;
    const std::vector<bfloat16> part = chunk.decoded({begin, begin + rows * whole.matrix.cols});
    joined.insert(joined.end(), part.begin(), part.end());
  }
  EXPECT_EQ(std::memcmp(joined.data(), expected.data(), values.size() * sizeof(bfloat16)), 0);
}

}  // namespace
}  // namespace tessera::quant
