// The three matrix products of a linear layer with a weight w [out, in], x [tokens, in] and y [tokens, out]. The bits
// of a result depend on the shapes and not on the addresses of the operands. An operand that does not start at a
// multiple of 64 bytes (256 bytes on a GPU) is therefore copied first. Sums are fp32 for bf16 and fp32 inputs, and fp64
// for fp64. Any dimension may be 0. Throws Error if shapes or types do not match.
#pragma once
#include <ATen/core/Tensor.h>

namespace tessera::ops {

at::Tensor gemm_fprop(const at::Tensor& x, const at::Tensor& w);   // y = x w^T
at::Tensor gemm_dgrad(const at::Tensor& dy, const at::Tensor& w);  // dx = dy w
// Write the products to existing tensors `y` [tokens, out] and `dx` [tokens, in]. `y` and `dx` must be contiguous and
// have the type of the operands.
void gemm_fprop_to(const at::Tensor& x, const at::Tensor& w, at::Tensor& y);
void gemm_dgrad_to(const at::Tensor& dy, const at::Tensor& w, at::Tensor& dx);
// dw [out, in] = dy^T x. `dw` is contiguous and has the accumulator type of the inputs (fp32 or fp64). Without
// `accumulate`, `dw` may have another floating type, and the result is rounded once to this type. With `accumulate`,
// the product is computed separately and then added to dw.
void gemm_wgrad(const at::Tensor& dy, const at::Tensor& x, at::Tensor& dw, bool accumulate);

}  // namespace tessera::ops
