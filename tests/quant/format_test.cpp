// Tests the formats that a user can select.
#include "tessera/quant/formats/format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tessera/base/error.h"

namespace tessera::quant {
namespace {

TEST(Format, NamesParseToTheSameFormat) {
  std::set<std::string_view> names;
  for (const Format format : {Format::bf16, Format::fp8, Format::fp8_block, Format::mxfp8, Format::nvfp4}) {
    EXPECT_EQ(parse_format(name_of(format)), format);
    names.insert(name_of(format));
  }
  EXPECT_EQ(names.size(), 5U);
  try {
    parse_format("fp7");
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("fp7"), testing::HasSubstr("fp8_block")));
  }
}

TEST(Format, WeightEncodingsMatchTheDocumentation) {
  EXPECT_EQ(weight_encoding(Format::fp8), (Encoding{Element::e4m3, Scale::fp32, {0, 0}, false}));
  EXPECT_EQ(weight_encoding(Format::fp8_block), (Encoding{Element::e4m3, Scale::fp32, {128, 128}, true}));
  EXPECT_EQ(weight_encoding(Format::mxfp8), (Encoding{Element::e4m3, Scale::e8m0, {1, 32}, false}));
  EXPECT_EQ(weight_encoding(Format::nvfp4), (Encoding{Element::e2m1, Scale::e4m3, {16, 16}, false}));
  EXPECT_THROW(weight_encoding(Format::bf16), Error);
}

TEST(Format, ColumnwiseTilesExtendAlongTheColumns) {
  EXPECT_EQ(columnwise_encoding(Format::mxfp8), (Encoding{Element::e4m3, Scale::e8m0, {32, 1}, false}));
  EXPECT_EQ(format_of(columnwise_encoding(Format::mxfp8)), Format::mxfp8);
  for (const Format format : {Format::fp8, Format::fp8_block, Format::nvfp4})
    EXPECT_EQ(columnwise_encoding(format), weight_encoding(format));
  EXPECT_THROW(columnwise_encoding(Format::bf16), Error);
}

TEST(Formats, ActivationsAndGradientsHaveTilesAlongRows) {
  EXPECT_EQ(input_encoding(Format::fp8), weight_encoding(Format::fp8));
  EXPECT_EQ(input_encoding(Format::fp8_block).tile, (ScaleTile{1, 128}));
  EXPECT_EQ(input_encoding(Format::mxfp8), weight_encoding(Format::mxfp8));
  EXPECT_EQ(input_encoding(Format::nvfp4).tile, (ScaleTile{1, 16}));
  for (const Format format : {Format::fp8, Format::fp8_block, Format::mxfp8, Format::nvfp4}) {
    EXPECT_EQ(gradient_encoding(format, Fp8Recipe::e4m3), input_encoding(format));
    Encoding expected = input_encoding(format);
    if (format == Format::fp8) expected.element = Element::e5m2;
    EXPECT_EQ(gradient_encoding(format, Fp8Recipe::hybrid), expected);
  }
  EXPECT_THROW(input_encoding(Format::bf16), Error);
  EXPECT_THROW(gradient_encoding(Format::bf16, Fp8Recipe::hybrid), Error);
}

}  // namespace
}  // namespace tessera::quant
