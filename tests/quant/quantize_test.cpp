// Compares whole matrices of every encoding with the definition, including extents that are not multiples of a tile.
#include "tessera/quant/formats/quantize.h"

#include <gtest/gtest.h>

#include <limits>

#include "tessera/base/error.h"
#include "tests/quant/matrices.h"

namespace tessera::quant {
namespace {

class Matrices : public testing::TestWithParam<NamedEncoding> {
 protected:
  const Encoding& encoding() const { return GetParam().encoding; }
};
INSTANTIATE_TEST_SUITE_P(Encodings, Matrices, testing::ValuesIn(all_encodings()), name_of_case);

bool are_equal(bfloat16 a, bfloat16 b) {
  return a.bits == b.bits || (std::isnan(static_cast<float>(a)) && std::isnan(static_cast<float>(b)));
}

// Quantizes and dequantizes from bf16 and from fp32.
void expect_as_defined(const std::vector<float>& values, Extent matrix, const Encoding& encoding) {
  SCOPED_TRACE(testing::Message() << matrix.rows << " x " << matrix.cols);
  std::vector<bfloat16> expected_values, got_values(values.size());
  const Stored expected = definition::quantized(rounded_values(values), matrix, encoding, expected_values);
  Stored got = quantized(rounded_values(values), matrix, encoding);
  ASSERT_EQ(got.scales, expected.scales);
  ASSERT_EQ(got.data, expected.data);
  EXPECT_EQ(got.tensor_amax, expected.tensor_amax);
  EXPECT_EQ(quantized(values, matrix, encoding), expected) << "from fp32";
  dequantize(got.view(), matrix, encoding, got_values.data());
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_TRUE(are_equal(got_values[i], expected_values[i]))
        << "element " << i << ": " << static_cast<float>(got_values[i]) << ", expected "
        << static_cast<float>(expected_values[i]);
}

TEST_P(Matrices, MatchTheDefinitionInAllExtents) {
  unsigned seed = 0;
  for (const std::int64_t rows : {1, 5, 17, 100, 129})
    for (const std::int64_t cols : {2, 16, 80, 288, 688})
      expect_as_defined(random_values(rows * cols, ++seed), {rows, cols}, encoding());
}

TEST_P(Matrices, WithAnOddNumberOfColumnsMatchTheDefinitionOrAreRejected) {
  for (const std::int64_t cols : {1, 31, 129}) {
    const Extent matrix{.rows = 33, .cols = cols};
    const std::vector<float> values = random_values(matrix.elements(), 7);
    if (encoding().element != Element::e2m1) {
      expect_as_defined(values, matrix, encoding());
      continue;
    }
    std::vector<float> multipliers(1000, 1.0F);
    std::vector<std::uint8_t> data(values.size());
    EXPECT_THROW(check_extent(encoding(), matrix), Error);
    EXPECT_THROW(cast(source_of(values), matrix, encoding(), {0, 4}, multipliers, data.data()), Error);
  }
}

TEST_P(Matrices, OfZerosMatchTheDefinition) {
  expect_as_defined(std::vector<float>(17 * 80, 0.0F), {.rows = 17, .cols = 80}, encoding());
  expect_as_defined(std::vector<float>(17 * 80, -0.0F), {.rows = 17, .cols = 80}, encoding());
}

TEST_P(Matrices, WithATileOfZerosMatchTheDefinition) {
  const Extent matrix{.rows = 140, .cols = 272};
  std::vector<float> values = random_values(matrix.elements(), 3);
  for (std::int64_t row = 0; row < matrix.rows; ++row)
    for (std::int64_t col = 0; col < 144; ++col) values[static_cast<std::size_t>(row * matrix.cols + col)] = 0;
  expect_as_defined(values, matrix, encoding());
}

TEST_P(Matrices, OfTinyAndHugeValuesMatchTheDefinition) {
  for (const int exponent : {-149, -140, -128, -126, -100, 100, 120, 127}) {
    std::vector<float> values = random_values(std::int64_t{33} * 80, 4);
    for (float& value : values) value = std::ldexp(value, exponent);
    expect_as_defined(values, {.rows = 33, .cols = 80}, encoding());
  }
}

TEST_P(Matrices, WithOneInfinityOrNanMatchTheDefinition) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const float special : {infinity, -infinity, nan, -nan, FLT_MAX}) {  // FLT_MAX rounds to infinity
    std::vector<float> values = random_values(std::int64_t{33} * 80, 5);
    values[20 * 80 + 41] = special;
    expect_as_defined(values, {.rows = 33, .cols = 80}, encoding());
  }
  expect_as_defined(std::vector<float>(17 * 80, nan), {.rows = 17, .cols = 80}, encoding());
}

TEST_P(Matrices, WithoutElementsWriteNoData) {
  for (const Extent matrix : {Extent{0, 80}, Extent{17, 0}, Extent{0, 0}}) {
    EXPECT_TRUE(quantized(std::vector<float>{}, matrix, encoding()).data.empty());
    Stored stored = room_for(encoding(), matrix);
    stored.tensor_amax = 1;
    dequantize(stored.view(), matrix, encoding(), static_cast<bfloat16*>(nullptr));
    dequantize(stored.view(), matrix, encoding(), static_cast<float*>(nullptr));
  }
}

// The tensor amax is not written if its address is null.
TEST_P(Matrices, GiveTheSameBytesWithoutAnAmaxAddress) {
  const Extent matrix{.rows = 17, .cols = 80};
  const std::vector<float> values = random_values(matrix.elements(), 6);
  Stored stored = room_for(encoding(), matrix);
  quantize(source_of(values), matrix, encoding(), {.data = stored.data.data(), .scales = stored.scales.data()});
  const Stored expected = quantized(values, matrix, encoding());
  EXPECT_EQ(stored.data, expected.data);
  EXPECT_EQ(stored.scales, expected.scales);
}

TEST(Quantize, CountsTilesRowByRowIncludingPartialTiles) {
  const Extent matrix{.rows = 129, .cols = 688};
  EXPECT_EQ(scale_extent({.tile = {16, 16}}, matrix), (Extent{9, 43}));
  EXPECT_EQ(scale_extent({.tile = {1, 32}}, matrix), (Extent{129, 22}));
  EXPECT_EQ(scale_extent({.tile = {32, 1}}, matrix), (Extent{5, 688}));
  EXPECT_EQ(scale_extent({.tile = {128, 128}}, matrix), (Extent{2, 6}));
  EXPECT_EQ(scale_extent({}, matrix), (Extent{1, 1}));
  EXPECT_EQ(scale_extent({}, {.rows = 0, .cols = 688}), (Extent{1, 1}));
  EXPECT_EQ(scale_extent({.tile = {16, 16}}, {.rows = 0, .cols = 688}), (Extent{0, 43}));
}

TEST(Quantize, CountsBytes) {
  EXPECT_EQ(data_bytes(Element::e4m3, 7), 7);
  EXPECT_EQ(data_bytes(Element::e2m1, 10), 5);
  EXPECT_THROW(data_bytes(Element::e2m1, 7), Error);
  EXPECT_EQ(scale_type(Scale::fp32), DType::fp32);
  EXPECT_EQ(scale_type(Scale::e8m0), DType::u8);
  EXPECT_EQ(scale_type(Scale::e4m3), DType::u8);
}

TEST(Quantize, StoresTheEvenColumnInTheLowHalf) {
  const std::vector<float> values{6, -0.5F};  // amax 6: the multiplier is 1
  const Stored stored = quantized(values, {.rows = 1, .cols = 2}, {Element::e2m1, Scale::e4m3, {16, 16}});
  EXPECT_EQ(stored.data, std::vector<std::uint8_t>{0x97});
}

TEST(Quantize, RejectsOtherSourceTypes) {
  std::vector<float> amaxes(1);
  EXPECT_THROW(take_amaxes({nullptr, DType::fp64}, {1, 1}, {}, {0, 0}, amaxes), Error);
  EXPECT_THROW(cast({nullptr, DType::i32}, {1, 1}, {}, {0, 0}, amaxes, nullptr), Error);
}

}  // namespace
}  // namespace tessera::quant
