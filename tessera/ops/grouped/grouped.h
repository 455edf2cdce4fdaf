// The matrix products of experts. `w` stacks the weights of the local experts by rows.
//
// On a CPU, fprop and dgrad compute one product for each expert and block. On a GPU, fprop and dgrad compute one
// product for each expert. The bits of a result row do not depend on other rows. wgrad computes one product for each
// expert over the rows of all blocks. Throws Error if shapes or types do not match.
#pragma once
#include "tessera/ops/router/selection.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

// A GPU pads the operands of bf16 products to sizes that are multiples of this number: 16 bytes, the alignment of rows.
inline constexpr std::int64_t kGroupedMultiple = 8;
// Returns whether a GPU pads operands of the products with weights [out, in] of experts.
constexpr bool pads_operands(quant::DType type, std::int64_t out, std::int64_t in) {
  const bool is_empty = out == 0 || in == 0;  // products with an empty weight are not computed
  return type == quant::DType::bf16 && !is_empty && (out % kGroupedMultiple != 0 || in % kGroupedMultiple != 0);
}

// w: [local * out, in]. x: [room, in]. Returns x w^T: [room, out]. Rows of the result after the selected rows are
// undefined.
at::Tensor grouped_fprop(const at::Tensor& x, const at::Tensor& w, const Selection& selection);
// dy: [room, out]. Returns dy w: [room, in].
at::Tensor grouped_dgrad(const at::Tensor& dy, const at::Tensor& w, const Selection& selection);
// Computes dw [local * out, in] = dy^T x for each expert. Types and `accumulate` have the meaning of gemm_wgrad. The
// gradient of an expert without rows is zero. On a GPU, the result of bf16 inputs is rounded to bf16. A `dw` of fp32 is
// therefore refused for these inputs.
void grouped_wgrad(const at::Tensor& dy, const at::Tensor& x, const Selection& selection, at::Tensor& dw,
                   bool accumulate);

}  // namespace tessera::ops
