#include "tests/ops/decoded_matrices.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tessera/ops/gemm/operand.h"
#include "tessera/quant/formats/decoded.h"
#include "tessera/quant/formats/hadamard.h"
#include "tests/ops/values.h"

namespace tessera::ops::test::formats {

std::ostream& operator<<(std::ostream& out, const Kinds& kind) {
  return out << name_of(kind.format) << (kind.recipe == quant::Fp8Recipe::hybrid ? "" : " e4m3");
}

Decoded definition(const at::Tensor& matrix, const quant::Encoding& encoding, const std::optional<float>& multiplier) {
  const WholeScale whole = needs_whole(encoding) ? whole_scale(encoding, amax_of(matrix)) : WholeScale();
  float scale = 0, number = 1;
  if (has_one_scale(encoding)) {
    scale = multiplier.value_or(whole.multiplier.item<float>());
    number = multiplier ? 1 / *multiplier : whole.inverse.item<float>();
  } else if (encoding.scale == quant::Scale::e4m3) {
    scale = number = whole.amax.item<float>();
  }
  const at::Tensor source = matrix.contiguous(), values = at::empty(source.sizes(), at::kBFloat16);
  decode_operand({.values = static_cast<const quant::bfloat16*>(source.const_data_ptr()),
                  .matrix = {source.size(0), source.size(1)},
                  .encoding = encoding,
                  .whole = scale},
                 static_cast<quant::bfloat16*>(values.mutable_data_ptr()));
  return {.values = values.to(at::kDouble), .bytes = values, .encoding = encoding, .number = number};
}

namespace {
quant::bfloat16* elements_of(const at::Tensor& matrix) {
  return static_cast<quant::bfloat16*>(matrix.mutable_data_ptr());
}
quant::Extent extent_of_source(const at::Tensor& matrix) {
  return {.rows = matrix.size(0), .cols = matrix.size(1)};
}
}  // namespace

Decoded definition(const at::Tensor& matrix, const quant::Encoding& encoding, const Recipe& recipe) {
  at::Tensor source = matrix.contiguous();
  if (recipe.transform) {
    const quant::Extent extent = extent_of_source(source), wide = quant::transformed_extent(extent);
    const at::Tensor transformed = at::empty({wide.rows, wide.cols}, at::kBFloat16);
    transform_columns(elements_of(source), extent, elements_of(transformed));
    source = transformed;
  }
  const float amax = recipe.amax.value_or(amax_of(source).item<float>());
  const at::Tensor values = at::empty(source.sizes(), at::kBFloat16);
  quant::OperandSource operand{.values = elements_of(source),
                               .matrix = extent_of_source(source),
                               .encoding = encoding,
                               .whole = amax,
                               .rounding = recipe.rounding};
  if (recipe.tokens.empty()) {
    decode_operand(operand, elements_of(values));
  } else {
    operand.matrix.rows = 1;
    for (std::int64_t row = 0; row < source.size(0); ++row) {
      operand.values = elements_of(source) + row * source.size(1);
      operand.rounding.first_token = recipe.rounding.first_token + recipe.tokens[static_cast<std::size_t>(row)];
      decode_operand(operand, elements_of(values) + row * source.size(1));
    }
  }
  return {.values = values.to(at::kDouble), .bytes = values, .encoding = encoding, .number = amax};
}

// A CPU adds n exact products in fp32, with n - 1 roundings of partial sums; alpha is rounded once and multiplied with
// one more rounding. A GPU multiplies alpha into one factor, which is rounded to bf16; a result of this product below
// the normal numbers has an error of 2^-134.
void expect_product(const at::Tensor& got, const Decoded& left, const Decoded& right) {
  constexpr double kUnit = 0x1p-24;  // one rounding to fp32
  const double alpha = product_alpha(left.encoding, left.number, right.encoding, right.number);
  const at::Tensor exact = left.values.matmul(right.values.t()).mul(alpha);
  const Values sizes = values_of(left.values.abs().matmul(right.values.abs().t()).mul(alpha));
  const auto terms = static_cast<double>(left.values.size(1));
  const double greatest = right.values.numel() == 0 ? 0 : right.values.abs().max().item<double>();
  const double sums = got.is_cuda() ? terms * 0x1p-22 + 0x1p-8 + 8 * kUnit : (terms + 4) * kUnit;
  const double tiny = got.is_cuda() ? terms * 0x1p-134 * greatest : 0;
  const Values expected = values_of(exact);
  ASSERT_EQ(got.sizes(), exact.sizes());
  expect_near(values_of(got.cpu()), expected, [&](std::size_t i) {
    return sums * sizes[i] + tiny + 1.01 * roundoff(at::kBFloat16) * std::abs(expected[i]);
  });
}

void spoil(at::Tensor& matrix) {
  const float values[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 0x1p-133F,
                          1e-30F, -0.0F};
  const std::int64_t rows = matrix.size(0), cols = matrix.size(1);
  for (std::int64_t i = 0; i < 5; ++i) matrix.select(0, i * 37 % rows).select(0, i * 53 % cols).fill_(values[i]);
}

}  // namespace tessera::ops::test::formats
