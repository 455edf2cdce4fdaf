// Products of operands in number formats.
#include <ATen/ops/mm.h>

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/gemm/gemm_device.h"
#include "tessera/ops/gemm/operand.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

void require_pair(const Operand& left, const Operand& right) {
  TESSERA_CHECK(left.defined() && right.defined(), "product of operands: an operand is undefined");
  TESSERA_CHECK(left.extent.cols == right.extent.cols,
                "product of operands: rows have {} and {} elements, expected equal numbers", left.extent.cols,
                right.extent.cols);
  TESSERA_CHECK(
      left.values.defined() == right.values.defined() && is_decoded(left.encoding) == is_decoded(right.encoding),
      "product of operands: the operands are on different devices, or only one of them is decoded");
}

ScaledSide side_of(const Operand& operand) {
  return {
      .codes = operand.codes.const_data_ptr(), .encoding = operand.encoding, .scales = operand.scales.const_data_ptr()};
}

// GPU: returns the product with padding. Writes the product directly to `result` if `result` has no padding, the right
// type and alignment.
at::Tensor padded_product(const Operand& left, const Operand& right, at::ScalarType type, bool fast,
                          const at::Tensor& result) {
  const std::int64_t rows = left.codes.size(0), cols = right.codes.size(0);
  const bool fits = result.defined() && result.size(0) == rows && result.size(1) == cols &&
                    result.scalar_type() == type &&
                    reinterpret_cast<std::uintptr_t>(result.const_data_ptr()) % 256 == 0;
  at::Tensor whole = fits ? result : make({rows, cols}, type, left.codes.device());
  const at::Tensor scratch = make({kProductScratch}, at::kByte, whole.device());
  cuda_only<cuda::multiply_scaled>({.rows = rows,
                                    .cols = cols,
                                    .inner = left.codes.size(1),
                                    .left = side_of(left),
                                    .right = side_of(right),
                                    .fast = fast,
                                    .result_type = to_dtype(type),
                                    .result = whole.mutable_data_ptr()},
                                   scratch.mutable_data_ptr(), stream_of(whole), /*candidate=*/-1);
  return whole;
}

// The format for the report. Inputs and gradients of a format may have other elements and tiles than its weights.
quant::Format format_of_codes(const quant::Encoding& encoding) {
  return encoding.tile == quant::ScaleTile{} ? quant::Format::fp8 : quant::Format::fp8_block;
}

at::Tensor without_padding(const at::Tensor& product, std::int64_t rows, std::int64_t cols) {
  return product.narrow(0, 0, rows).narrow(1, 0, cols).contiguous();
}

bool is_empty(const Operand& left, const Operand& right) {
  return left.extent.rows == 0 || right.extent.rows == 0 || left.extent.cols == 0;
}

at::Tensor product_in(const Operand& left, const Operand& right, at::ScalarType type, bool fast,
                      const at::Tensor& result) {
  if (is_decoded(left.encoding)) return decoded_product(left, right, type, result);
  const std::int64_t rows = left.extent.rows, cols = right.extent.rows;
  if (left.codes.defined() && is_dry(left.codes)) {
    const ProductSizes extents{.rows = rows,
                               .cols = cols,
                               .inner = left.extent.cols,
                               .call = ProductCall::operands,
                               .format = format_of_codes(left.encoding),
                               .left = left.encoding,
                               .right = right.encoding,
                               .fast = fast};
    report(product_work("product", extents, quant::DType::u8, to_dtype(type)));
    return make({rows, cols}, type, left.codes.device());
  }
  if (left.values.defined()) return rounded_to(at::mm(left.values, right.values.t()), type);
  if (is_empty(left, right)) return make({rows, cols}, type, left.codes.device()).zero_();
  return without_padding(padded_product(left, right, type, fast, result), rows, cols);
}

bool have_one_scale(const Operand& left, const Operand& right) {
  return left.encoding.tile == quant::ScaleTile{} && right.encoding.tile == quant::ScaleTile{};
}

}  // namespace

at::Tensor multiply(const Operand& left, const Operand& right, bool fast) {
  require_pair(left, right);
  return product_in(left, right, at::kBFloat16, fast && have_one_scale(left, right), {});
}

void multiply_to(const Operand& left, const Operand& right, at::Tensor& result, bool fast) {
  require_pair(left, right);
  require_writable(result, {left.extent.rows, right.extent.rows}, at::kBFloat16, "multiply_to result");
  const at::Tensor alone = product_in(left, right, at::kBFloat16, fast && have_one_scale(left, right), result);
  if (alone.const_data_ptr() != result.const_data_ptr()) result.copy_(alone);
}

void multiply_into(const Operand& left, const Operand& right, at::Tensor& result, bool accumulate) {
  require_pair(left, right);
  TESSERA_CHECK(result.defined() && at::isFloatingType(result.scalar_type()),
                "product of operands: expected a result of a floating type");
  require_writable(result, {left.extent.rows, right.extent.rows}, accumulate ? at::kFloat : result.scalar_type(),
                   "product of operands result");
  // The GPU library can round to bf16.
  const bool rounds = result.scalar_type() == at::kBFloat16 && !(left.values.defined() && left.values.is_cpu());
  const at::ScalarType type = rounds ? at::kBFloat16 : at::kFloat;
  const at::Tensor alone = product_in(left, right, type, /*fast=*/false, accumulate ? at::Tensor() : result);
  if (accumulate) return add_to(result, alone);
  if (!alone.is_same(result) && alone.const_data_ptr() != result.const_data_ptr())
    result.copy_(rounded_to(alone, result.scalar_type()));
}

}  // namespace tessera::ops
