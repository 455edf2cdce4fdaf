// Tests linear layers whose tokens are gathered as codes, bit for bit.
#include <gtest/gtest.h>

#include <array>

#include "tests/nn/format_linear.h"

namespace tessera::nn::formats {
namespace {

// Returns the bytes that this rank receives in the program's collectives, and the gathers of bf16 numbers.
struct Sent {
  std::array<std::int64_t, quant::kFormats> bytes{};
  runtime::TpWireFallbacks fallbacks{};
};
Sent sent_by(FormatLinear& linear, const FormatCase& how) {
  linear.train({linear_matrices(how, 1)});
  const runtime::StepStatistics statistics = linear.runtime().statistics();
  return {statistics.activations_by_format, statistics.tp_wire_fallbacks};
}

// Tokens that are gathered as codes have the bits of bf16 tokens. The ranks' tokens begin at tiles, or nowhere near.
TEST(LinearInFormats, SendsCodesOfTokensWithEqualBits) {
  struct Tiles {
    Format format;
    std::int64_t tile;
    int exponent;
  };
  for (const auto& [format, tile, exponent] :
       {Tiles{Format::fp8_block, 128, 20}, Tiles{Format::mxfp8, 32, 20}, Tiles{Format::nvfp4, 16, 6}})
    for (const int tp : {2, 3})
      for (const std::int64_t tokens : {tp * tile, 2 * tile + 7, std::int64_t{5}})
        for (const bool is_column : {true, false})
          for (const bool overlap : {false, true}) {
            FormatCase how{.is_column = is_column,
                           .tp = tp,
                           .sequence_parallel = true,
                           .policy = is_column == overlap ? Recompute::none : Recompute::selective,
                           .product = format,
                           .products = {.tp_wire = format, .tp_chunks = 2, .tp_overlap = overlap},
                           .tokens = tokens,
                           .tile = tile,
                           .exponent = exponent};
            how.products.hadamard = is_column == overlap;  // then columns are gathered in bf16
            how.in = tp * tile + (is_column ? 10 : 0);
            how.out = tp * tile + (is_column ? 0 : 10);
            on_format_ranks(how, /*is_delayed=*/false,
                            [&](FormatLinear& linear) { expect_products(linear, how, {}, 1); });
          }
}

// The input of a column layer is gathered by rows and then by columns. The gradient of a row layer is gathered for
// both.
TEST(LinearInFormats, CountsTheBytesOfCodesAndTheGathersWithoutCodes) {
  using Fallbacks = runtime::TpWireFallbacks;
  const auto index = [](Format format) { return static_cast<std::size_t>(format); };
  const auto check = [&](Format format, bool is_column, std::int64_t tokens, std::int64_t codes, std::int64_t whole,
                         const Fallbacks& fallbacks, bool hadamard = false) {
    FormatCase how{.is_column = is_column,
                   .tp = 2,
                   .sequence_parallel = true,
                   .product = format,
                   .products = {.hadamard = hadamard, .tp_wire = format},
                   .tokens = tokens,
                   .in = 256,
                   .out = 256,
                   .tile = 128};
    on_format_ranks(how, /*is_delayed=*/false, [&](FormatLinear& linear) {
      const Sent sent = sent_by(linear, how);
      EXPECT_EQ(sent.bytes[index(format)], codes) << tokens;
      // Each layer also scatters one bf16 matrix.
      const std::int64_t own = how.tokens / 2 * 256 * 2;
      const std::int64_t amaxes = format == Format::nvfp4 ? sent.bytes[index(Format::bf16)] - whole - own : 0;
      EXPECT_EQ(sent.bytes[index(Format::bf16)] - amaxes, whole + own) << tokens;
      EXPECT_GE(amaxes, 0);
      EXPECT_LE(amaxes, 64);
      EXPECT_EQ(sent.fallbacks, fallbacks) << tokens;
    });
  };
  constexpr std::int64_t kElements = 128 * 256;  // of the other rank's tokens
  constexpr Fallbacks kNone{};
  const std::int64_t block = kElements + kElements / 32, mx = kElements + kElements / 32;
  const std::int64_t nv = kElements / 2 + kElements / 16, bf16 = 2 * kElements;
  check(Format::fp8_block, true, 256, 2 * block, 0, kNone);
  check(Format::mxfp8, true, 256, 2 * mx, 0, kNone);
  check(Format::nvfp4, true, 256, 2 * nv, 0, kNone);
  check(Format::fp8_block, false, 256, 0, bf16, {0, 1, 0});
  check(Format::mxfp8, false, 256, 0, bf16, {0, 1, 0});
  check(Format::nvfp4, false, 256, 2 * nv, 0, kNone);
  check(Format::nvfp4, true, 256, nv, bf16, {0, 0, 1}, /*hadamard=*/true);
  check(Format::nvfp4, false, 256, 0, bf16, {0, 0, 1}, /*hadamard=*/true);
  // 8 tokens on each rank: the second rank's tokens begin in a tile.
  constexpr std::int64_t kFew = 8 * 256;
  check(Format::fp8_block, true, 16, kFew + kFew / 32, 2 * kFew, {1, 0, 0});
  check(Format::mxfp8, true, 16, kFew + kFew / 32, 2 * kFew, {1, 0, 0});
  check(Format::nvfp4, true, 16, kFew / 2 + kFew / 16, 2 * kFew, {1, 0, 0});
  for (const Format format : {Format::fp8_block, Format::mxfp8, Format::nvfp4})
    check(format, false, 16, 0, 2 * kFew, {1, 0, 0});
}

}  // namespace
}  // namespace tessera::nn::formats
