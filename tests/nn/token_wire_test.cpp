// Tests the decision whether tokens are gathered as codes.
#include "tessera/nn/parallel/token_wire.h"

#include <gtest/gtest.h>

namespace tessera::nn {
namespace {

using quant::Format;

TEST(TokenWire, SendsWhatIsFewerBytes) {
  using enum runtime::TpWireFallback;
  const auto why = [](Format format, ops::Sides sides, bool at_tiles, bool transforms = false,
                      std::int64_t cols = 256) {
    return wire_fallback({.encoding = quant::input_encoding(format),
                          .matrix = {.rows = 256, .cols = cols},
                          .sides = sides,
                          .begins_at_tiles = at_tiles,
                          .transforms_columns = transforms});
  };
  using enum ops::Sides;
  for (const Format format : {Format::fp8, Format::fp8_block, Format::mxfp8, Format::nvfp4})
    for (const bool at_tiles : {false, true}) EXPECT_EQ(why(format, rows, at_tiles, at_tiles), std::nullopt);
  EXPECT_EQ(why(Format::fp8, both, false), std::nullopt);
  EXPECT_EQ(why(Format::fp8, columns, false), std::nullopt);
  for (const Format format : {Format::fp8_block, Format::mxfp8, Format::nvfp4}) {
    EXPECT_EQ(why(format, columns, true), std::nullopt);
    EXPECT_EQ(why(format, columns, false), tiles);
    EXPECT_EQ(why(format, both, false), tiles);
    EXPECT_EQ(why(format, both, true), format == Format::nvfp4 ? std::nullopt : std::optional(both_sides));
    // Transformed columns do not follow from codes.
    EXPECT_EQ(why(format, columns, true, true), transform);
    EXPECT_EQ(why(format, both, true, true), transform);
  }
  EXPECT_EQ(why(Format::nvfp4, both, true, false, 1), both_sides);  // a scale for each element
}

}  // namespace
}  // namespace tessera::nn
