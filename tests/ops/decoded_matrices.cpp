#include "tests/ops/decoded_matrices.h"

#include <ATen/ops/empty.h>

#include <limits>

#include "tessera/ops/gemm/operand.h"
#include "tessera/quant/formats/decoded.h"

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

void spoil(at::Tensor& matrix) {
  const float values[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 0x1p-133F,
                          1e-30F, -0.0F};
  const std::int64_t rows = matrix.size(0), cols = matrix.size(1);
  for (std::int64_t i = 0; i < 5; ++i) matrix.select(0, i * 37 % rows).select(0, i * 53 % cols).fill_(values[i]);
}

}  // namespace tessera::ops::test::formats
