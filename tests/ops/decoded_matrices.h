// Matrices that are quantized and decoded as quant/formats/decoded.h defines, for the tests of products in number
// formats.
#pragma once
#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <ostream>
#include <vector>

#include "tessera/quant/formats/format.h"
#include "tessera/quant/formats/stochastic_rounding.h"

namespace tessera::ops::test::formats {

// A number format of products, and the element types of fp8.
struct Kinds {
  quant::Format format;
  quant::Fp8Recipe recipe = quant::Fp8Recipe::hybrid;

  quant::Encoding input() const { return input_encoding(format); }
  quant::Encoding gradient() const { return gradient_encoding(format, recipe); }
};
inline constexpr std::array<Kinds, 5> kKinds{{{quant::Format::fp8},
                                              {quant::Format::fp8, quant::Fp8Recipe::e4m3},
                                              {quant::Format::fp8_block},
                                              {quant::Format::mxfp8},
                                              {quant::Format::nvfp4}}};
std::ostream& operator<<(std::ostream& out, const Kinds& kind);

struct Decoded {
  at::Tensor values;  // fp64
  at::Tensor bytes;   // the values in bf16
  quant::Encoding encoding;
  float number = 1;  // number of quant::product_alpha
};
// Decodes one bf16 matrix on the CPU. The multiplier of an encoding with one fp32 scale is that of the matrix's amax if
// it is not given.
Decoded definition(const at::Tensor& matrix, const quant::Encoding& encoding,
                   const std::optional<float>& multiplier = {});

// The recipe of nvfp4 for one matrix: whether its columns are transformed, and how it is rounded. Row i is rounded as
// token rounding.first_token + tokens[i]; without `tokens`, + i.
struct Recipe {
  bool transform = false;
  quant::StochasticRounding rounding = {};
  std::vector<std::int64_t> tokens = {};
  std::optional<float> amax = {};  // amax of the matrix in its scales; absent: the amax that the matrix has
};
Decoded definition(const at::Tensor& matrix, const quant::Encoding& encoding, const Recipe& recipe);

// Expects that `got` is alpha times left right^T within the bound of products of experts.
void expect_product(const at::Tensor& got, const Decoded& left, const Decoded& right);

// Sets some elements to values that are not finite, and to subnormal and small values.
void spoil(at::Tensor& matrix);

}  // namespace tessera::ops::test::formats
