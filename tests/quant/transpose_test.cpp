// Tests the transposition of quantized matrices. Elements and scales keep their values and change their positions.
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tests/quant/stacks.h"

namespace tessera::quant {
namespace {

class Transposes : public testing::TestWithParam<NamedEncoding> {
 protected:
  const Encoding& encoding() const { return GetParam().encoding; }
  // Returns the encoding of the transposed matrix.
  Encoding flipped() const { return quant::flipped(encoding()); }
};
INSTANTIATE_TEST_SUITE_P(Encodings, Transposes, testing::ValuesIn(all_encodings()), name_of_case);

Stored transposed(Stored source, Extent matrix, const Encoding& encoding, const Encoding& flipped) {
  Stored target = room_for(flipped, flip(matrix));
  transpose({.source = source.view(), .matrix = matrix, .encoding = encoding, .target = target.view()});
  return target;
}

constexpr Extent kExtents[] = {{2, 2}, {2, 288}, {18, 80}, {66, 130}, {100, 16}, {130, 688}};

TEST_P(Transposes, EqualTheQuantizedTransposedMatrix) {
  for (const Extent& matrix : kExtents) {
    const std::vector<float> values = random_values(matrix.elements(), 21);
    const Stored expected = quantized(transposed_values(values, matrix), flip(matrix), flipped());
    EXPECT_EQ(transposed(quantized(values, matrix, encoding()), matrix, encoding(), flipped()), expected)
        << matrix.rows << " x " << matrix.cols;
  }
}

TEST_P(Transposes, AppliedTwiceAreTheIdentity) {
  for (const Extent& matrix : kExtents) {
    const Stored source = quantized(random_values(matrix.elements(), 22), matrix, encoding());
    const Stored once = transposed(source, matrix, encoding(), flipped());
    EXPECT_EQ(transposed(once, flip(matrix), flipped(), encoding()), source) << matrix.rows << " x " << matrix.cols;
  }
}

TEST_P(Transposes, HaveTheSameValues) {
  const Extent matrix{.rows = 34, .cols = 80};
  Stored source = quantized(random_values(matrix.elements(), 23), matrix, encoding());
  Stored target = transposed(source, matrix, encoding(), flipped());
  std::vector<bfloat16> values(source.data.size() * 2), flipped_values(values);
  dequantize(source.view(), matrix, encoding(), values.data());
  dequantize(target.view(), flip(matrix), flipped(), flipped_values.data());
  values.resize(static_cast<std::size_t>(matrix.elements()));
  const std::vector<bfloat16> expected = transposed_values(values, matrix);
  for (std::size_t i = 0; i < expected.size(); ++i) ASSERT_EQ(flipped_values[i].bits, expected[i].bits) << i;
}

TEST_P(Transposes, OfAStackHaveTheBytesOfEachMatrixAlone) {
  std::mt19937 random(25);
  for (const std::int64_t count : {0, 1, 7})
    for (const Extent& matrix : kExtents) {
      const Stack stack = random_stack(encoding(), matrix, count, random);
      StoredStack source = stack.stored(), found = stack.transposed_room(flip(matrix)), expected;
      for (std::int64_t number = 0; number < count; ++number)
        expected.add(transposed(stack.quantized_alone(number), matrix, encoding(), flipped()));
      transpose({.source = source.view(),
                 .matrix = matrix,
                 .encoding = encoding(),
                 .target = found.view(),
                 .matrices = count});
      EXPECT_EQ(found, expected) << count << " matrices of " << matrix.rows << " x " << matrix.cols;
    }
}

TEST_P(Transposes, OfOddExtentsAreRejectedOnlyForFourBits) {
  const Extent matrix{.rows = 17, .cols = 80};
  const Stored source = quantized(random_values(matrix.elements(), 24), matrix, encoding());
  if (encoding().element == Element::e2m1) {
    Stored copy = source, target = source;
    const auto transposed_as = [&](Extent extent, const Encoding& as) {
      transpose({.source = copy.view(), .matrix = extent, .encoding = as, .target = target.view()});
    };
    EXPECT_THROW(transposed_as(matrix, encoding()), Error);
    EXPECT_THROW(transposed_as(flip(matrix), flipped()), Error);
  } else {
    const Stored once = transposed(source, matrix, encoding(), flipped());
    EXPECT_EQ(transposed(once, flip(matrix), flipped(), encoding()), source);
  }
}

// Codes and scales of padding are 0. The others are those of the result without padding.
TEST_P(Transposes, FillPaddingWithZeros) {
  std::mt19937 random(26);
  for (const Extent& matrix : {Extent{34, 80}, {66, 130}, {130, 688}}) {
    const Extent across = flip(matrix), padded{.rows = across.rows + 6, .cols = across.cols + 14};
    const Stack stack = random_stack(encoding(), matrix, 3, random);
    const std::int64_t tiles = scale_extent(encoding(), matrix).rows, scale_cols = tiles + 5;
    const auto scale_bytes = static_cast<std::int64_t>(size_of(scale_type(encoding().scale)));
    StoredStack source = stack.stored(), dense = stack.transposed_room(across),
                found = stack.transposed_room(padded, scale_cols);
    transpose({.source = source.view(),
               .matrix = matrix,
               .encoding = encoding(),
               .target = dense.view(),
               .matrices = stack.count});
    transpose({.source = source.view(),
               .matrix = matrix,
               .encoding = encoding(),
               .target = found.view(),
               .padded = padded,
               .scale_cols = scale_cols,
               .matrices = stack.count});
    const auto widened = [&](const std::vector<std::uint8_t>& bytes, std::int64_t rows, std::int64_t row_bytes,
                             std::int64_t all_rows, std::int64_t all_bytes) {
      std::vector<std::uint8_t> wide(static_cast<std::size_t>(stack.count * all_rows * all_bytes), 0);
      for (std::int64_t number = 0; number < stack.count; ++number)
        for (std::int64_t row = 0; row < rows; ++row)
          std::copy_n(bytes.begin() + (number * rows + row) * row_bytes, row_bytes,
                      wide.begin() + (number * all_rows + row) * all_bytes);
      return wide;
    };
    const auto code_bytes = [&](std::int64_t elements) { return data_bytes(encoding().element, elements); };
    EXPECT_EQ(found.codes,
              widened(dense.codes, across.rows, code_bytes(across.cols), padded.rows, code_bytes(padded.cols)));
    const std::int64_t scale_rows = scale_extent(encoding(), matrix).cols;
    EXPECT_EQ(found.scales,
              widened(dense.scales, scale_rows, tiles * scale_bytes, scale_rows, scale_cols * scale_bytes));
    EXPECT_EQ(found.tensor_amaxes, dense.tensor_amaxes);
  }
}

TEST_P(Transposes, NeedRoomForTheTransposedMatrix) {
  const Extent matrix{.rows = 34, .cols = 80};
  Stored source = quantized(random_values(matrix.elements(), 24), matrix, encoding()), target = source;
  Transposition work{.source = source.view(), .matrix = matrix, .encoding = encoding(), .target = target.view()};
  work.padded = {.rows = 80, .cols = 32};
  EXPECT_THROW(transpose(work), Error);
  work.padded = {.rows = 78, .cols = 34};
  EXPECT_THROW(transpose(work), Error);
}

TEST(Transpose, OfFourBitsSwapsHalfBytes) {
  const Encoding encoding{Element::e2m1, Scale::e4m3, {16, 16}};
  Stored source{.data = {0x21, 0x43, 0x65, 0x87}, .scales = {7}, .tensor_amax = 3};  // the rows are 1 2 3 4 and 5 6 7 8
  const Stored target = transposed(source, {.rows = 2, .cols = 4}, encoding, encoding);
  EXPECT_EQ(target.data, (std::vector<std::uint8_t>{0x51, 0x62, 0x73, 0x84}));
  EXPECT_EQ(target.scales, source.scales);
  EXPECT_EQ(target.tensor_amax, 3);
}

}  // namespace
}  // namespace tessera::quant
