// Checks that products whose tokens travel in pieces take the expected time in virtual time: all of the transfer is
// hidden from a width of 1865 x ranks, and c + g / t - g is exposed below.
#include "tessera/bench/kernels/token_products.h"

#include <gtest/gtest.h>

namespace tessera::bench {
namespace {

constexpr double kMicrosecond = 1e-6;

TEST(TokenProducts, TakeTheExpectedTime) {
  int exposed = 0, hidden = 0;
  const TokenRates rates;
  for (const TokenProductRow& row : token_product_rows(rates)) {
    const TokenProduct& it = row.product;
    SCOPED_TRACE(it.ranks);
    SCOPED_TRACE(it.width);
    const double c = it.transfer_seconds(rates), g = it.product_seconds(rates);
    EXPECT_NEAR(c / g, 1865.0 * (it.ranks - 1) / static_cast<double>(it.width), 1e-3);
    const bool is_hidden = static_cast<double>(it.width) >= it.hiding_width(rates);
    EXPECT_NEAR(it.hiding_width(rates), 1865 * it.ranks, it.ranks);
    const double left = is_hidden ? 0 : c + g / it.ranks - g;
    EXPECT_NEAR(row.measured, g + left, kMicrosecond);
    EXPECT_NEAR(row.exposed_measured, left, kMicrosecond);
    EXPECT_EQ(left > 10 * kMicrosecond, !is_hidden);
    (is_hidden ? hidden : exposed) += 1;
  }
  EXPECT_EQ(hidden, 8);
  EXPECT_EQ(exposed, 8);
}

TEST(TokenProducts, ArePrinted) {
  const std::vector<TokenProductRow> rows{
      measure_token_product({.ranks = 2, .gathers = false, .tokens = 8, .hidden = 4, .width = 6}, {})};
  EXPECT_EQ(token_product_json(rows)[0]["transfer"], "scatter");
  EXPECT_EQ(token_product_json(rows)[0]["measured_s"], rows[0].measured);
  EXPECT_NE(token_product_text(rows).find("scatter"), std::string::npos);
}

}  // namespace
}  // namespace tessera::bench
