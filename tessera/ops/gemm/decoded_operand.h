// Operands of decoded products (operand.h).
#pragma once
#include "tessera/ops/gemm/operand_types.h"

namespace tessera::ops {

// Returns an operand by columns from Sides::kept with its values. On a CPU the values are those of `kept`.
Operand decode(const Operand& kept);

// Returns the operand of a weight [out, in] from its decoded values, a bf16 matrix. `amax` is the amax of the logical
// weight, one fp32 number on the weight's device; undefined if the encoding does not need it. On a GPU the operand
// refers to the memory of `values`.
Operand decoded_weight(const at::Tensor& values, const quant::Encoding& encoding, Sides side, const at::Tensor& amax);

// Internal to ops: the decoded part of `quantize` and of the products in operand.h.

// Returns the operands of a dense bf16 matrix, on any device and in a dry run. The encoding in `as` is decoded.
Operands quantize_decoded(const at::Tensor& matrix, const Quantization& as);
// Returns the product of two operands of decoded products in `type`, bf16 or fp32. On a GPU the product is written to
// `result` if `result` is defined and has the right type and alignment; the returned tensor then is `result`.
at::Tensor decoded_product(const Operand& left, const Operand& right, at::ScalarType type, const at::Tensor& result);

}  // namespace tessera::ops
