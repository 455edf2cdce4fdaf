// The three matrix products of a linear layer with weight w [out, in] (rows are out features).
// x: [tokens, in], y: [tokens, out]. Same shape, same bits, wherever the operands lie: on a CPU they start at 64-byte
// multiples or are copied there (GPU: 256).
// Sums in fp32 for bf16 and fp32 inputs, fp64 for fp64. Any extent may be 0. Errors: shapes or types that do not fit.
#pragma once
#include <ATen/core/Tensor.h>

namespace tessera::ops {

at::Tensor gemm_fprop(const at::Tensor& x, const at::Tensor& w);   // y = x w^T
at::Tensor gemm_dgrad(const at::Tensor& dy, const at::Tensor& w);  // dx = dy w
// dw [out, in] = dy^T x in the accumulator type of the inputs (fp32, or fp64), or in another floating type rounded
// once, where nothing is added to it. `dw` is contiguous; with `accumulate` the product is computed alone and then
// added.
void gemm_wgrad(const at::Tensor& dy, const at::Tensor& x, at::Tensor& dw, bool accumulate);

}  // namespace tessera::ops
