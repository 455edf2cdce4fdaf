// Root-mean-square norm, with optional dropout and an optional residual addition before it.
//   sum = dropout(x) + residual;  y = sum * rstd * weight,  rstd = 1 / sqrt(mean(sum^2) + eps)   (Zhang & Sennrich
//   2019)
// x may be given as the sum of matrices (parts), for example of the products of several ranks. Such parts are added in
// their order in the accumulator type, and the sum is rounded once to the model's type. The results have the same bits
// as with this sum as x. The gradient dy may be given in the same form. There are at most kMaxSummedParts parts.
//
// x, residual, sum and y are [tokens, hidden] in the model's type. rstd is [tokens], and weight is [hidden]. Statistics
// are fp32 (fp64 for fp64). The result of a row depends only on that row. With dropout it also depends on the row's
// logical token.
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/ops/dropout.h"
#include "tessera/ops/norm/sum_of_parts.h"

namespace tessera::ops {

struct RmsNorm {
  at::Tensor y;
  // x + residual after dropout, rounded once. If x has one part, and there is neither a residual nor dropout: x itself.
  at::Tensor sum;
  at::Tensor rstd;  // accumulator type
};
// `residual` may be undefined. Throws Error for: a number of parts outside 1 to kMaxSummedParts; a dropout probability
// outside [0, 1); a probability above 0 if Dropout::step is null.
RmsNorm rms_norm_forward(at::TensorList x, const at::Tensor& residual, const at::Tensor& weight, double eps,
                         const Dropout& dropout = {});
// Recomputes y from saved tensors. The recomputed y has the same bits as the result of forward.
at::Tensor rms_norm_apply(const at::Tensor& sum, const at::Tensor& rstd, const at::Tensor& weight);
struct RmsNormGradients {
  at::Tensor residual;  // the gradient of RmsNorm::sum: the gradient through y plus `dsum`
  at::Tensor x;         // dropout(residual); without dropout the same tensor as `residual`
};
// `dsum` is the gradient of RmsNorm::sum from its later uses, and may be undefined. `dweight` [hidden] has the
// accumulator type. The terms of dweight are summed in token order. The sum is added to `dweight` if `accumulate` is
// true, and otherwise overwrites it. `dropout` is the dropout of the forward call.
RmsNormGradients rms_norm_backward(at::TensorList dy, const at::Tensor& dsum, const at::Tensor& sum,
                                   const at::Tensor& rstd, const at::Tensor& weight, at::Tensor& dweight,
                                   bool accumulate, const Dropout& dropout);
// Computes the gradients without dropout. Returns the gradient of `sum`, which is also the gradient of x and of
// residual.
at::Tensor rms_norm_backward(at::TensorList dy, const at::Tensor& dsum, const at::Tensor& sum, const at::Tensor& rstd,
                             const at::Tensor& weight, at::Tensor& dweight, bool accumulate);

}  // namespace tessera::ops
