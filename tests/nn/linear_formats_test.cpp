// Tests linear layers with products in number formats, bit for bit.
#include <gtest/gtest.h>

#include <array>

#include "tests/nn/format_linear.h"

namespace tessera::nn::formats {
namespace {

// Returns the largest magnitudes that this rank quantized in a step with two uses of the layer. If codes travel, only
// this rank's own tokens count; otherwise all its factors count.
std::array<float, 2> amaxes_of_step(const FormatLinear& linear, const FormatCase& how, int first_number) {
  const bool is_whole = how.products.tp_wire == Format::bf16;
  std::array<float, 2> amaxes{0, 0};
  for (const int number : {first_number, first_number + 1}) {
    const auto [x, dy] = linear_matrices(how, number);
    const at::Tensor input = how.is_column && is_whole ? x : linear.own_x(x),
                     gradient = !how.is_column && is_whole ? dy : linear.own_dy(dy);
    if (input.numel() > 0) amaxes[0] = std::max(amaxes[0], input.abs().max().item<float>());
    if (gradient.numel() > 0) amaxes[1] = std::max(amaxes[1], gradient.abs().max().item<float>());
  }
  return amaxes;
}
std::array<float, 2> found_by(FormatLinear& linear) {
  const std::span<float> found = linear.scales().found();
  return {found[0], found[1]};
}

// The multipliers differ from those that the amaxes of the matrices give. Some multiplied values are out of range.
TEST(LinearOfDelayedScales, UsesKnownScales) {
  constexpr std::array<float, 2> kMultipliers{93.0F, 0.3F};
  for (const FormatCase& how : fp8_cases())
    on_format_ranks(how, /*is_delayed=*/true, [&](FormatLinear& linear) {
      linear.scales().set_state(std::vector<float>{0, 0, 0, 0, kMultipliers[0], kMultipliers[1]},
                                *linear.runtime().parallel().compute);
      linear.evaluate(linear_matrices(how, 1));
      EXPECT_EQ(found_by(linear), (std::array<float, 2>{0, 0}));
      expect_products(linear, how, kMultipliers, 1);
      EXPECT_EQ(found_by(linear), amaxes_of_step(linear, how, 1));
    });
}

TEST(LinearOfDelayedScales, UsesTheMatricesAmaxesWhileScalesAreUnknown) {
  for (const FormatCase& how : fp8_cases())
    on_format_ranks(how, /*is_delayed=*/true, [&](FormatLinear& linear) {
      expect_products(linear, how, {}, 1);
      EXPECT_EQ(found_by(linear), amaxes_of_step(linear, how, 1));
    });
}

// Runs several steps like a training loop.
TEST(LinearOfDelayedScales, UsesTheAmaxesOfThePreviousStep) {
  for (const FormatCase& how : fp8_cases())
    on_format_ranks(how, /*is_delayed=*/true, [&](FormatLinear& linear) {
      linear.train({linear_matrices(how, 3)});
      linear.runtime().program().reduce_amaxes(linear.scales().found());
      linear.scales().update(nullptr, nullptr);
      linear.scales().set_known();
      const auto [x, dy] = linear_matrices(how, 3);
      const quant::Element of_gradient = quant::gradient_encoding(how.product, how.products.recipe).element;
      const float input = quant::greatest_of(quant::Element::e4m3) / x.abs().max().item<float>(),
                  gradient = quant::greatest_of(of_gradient) / dy.abs().max().item<float>();
      expect_products(linear, how, std::array{input, gradient}, 1);
    });
}

TEST(LinearInFormats, ScalesFp8ByTheMatricesAmaxes) {
  for (const FormatCase& how : fp8_cases())
    on_format_ranks(how, /*is_delayed=*/false, [&](FormatLinear& linear) { expect_products(linear, how, {}, 1); });
}

// The ranks' parts begin at tile borders. The last tile of tokens is short, and so is the last tile of the features
// that are not sharded. If a product used the scale of a neighbouring tile, numbers would become zero or out of range.
TEST(LinearInFormats, MultipliesTheTilesOfItsMatrices) {
  struct Tiles {
    Format format;
    std::int64_t tile;
    int exponent;
  };
  for (const auto& [format, tile, exponent] :
       {Tiles{Format::fp8_block, 128, 20}, Tiles{Format::mxfp8, 32, 20}, Tiles{Format::nvfp4, 16, 6}})
    for (FormatCase how : cases_of({.product = format, .tokens = tile + 6, .tile = tile, .exponent = exponent})) {
      how.in = 3 * tile + (how.is_column ? 10 : 0);
      how.out = 3 * tile + (how.is_column ? 0 : 10);
      how.products.hadamard = false;
      how.products.rounding = GradientRounding::nearest;
      on_format_ranks(how, /*is_delayed=*/false, [&](FormatLinear& linear) { expect_products(linear, how, {}, 1); });
    }
}

// The numbers of tokens are not multiples of 16, so the transform adds rows of zeros.
TEST(LinearInFormats, TransformsOperandsOfWgradAndRoundsGradientsStochastically) {
  for (const bool hadamard : {false, true})
    for (const GradientRounding rounding : {GradientRounding::stochastic, GradientRounding::nearest})
      for (FormatCase how : cases_of({.product = Format::nvfp4, .tokens = 38, .tile = 16, .exponent = 3})) {
        how.products.hadamard = hadamard;
        how.products.rounding = rounding;
        how.products.tp_chunks = 2;
        how.in = 48 + (how.is_column ? 10 : 0);
        how.out = 48 + (how.is_column ? 0 : 10);
        on_format_ranks(how, /*is_delayed=*/false, [&](FormatLinear& linear) { expect_products(linear, how, {}, 1); });
      }
}

}  // namespace
}  // namespace tessera::nn::formats
