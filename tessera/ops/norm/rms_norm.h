// Root-mean-square norm, with an optional residual addition before it.
//   sum = x + residual;  y = sum * rstd * weight,  rstd = 1 / sqrt(mean(sum^2) + eps)   (Zhang & Sennrich 2019)
// x, residual, sum and y are [tokens, hidden] in the model's type. rstd is [tokens], and weight is [hidden]. Statistics
// are fp32 (fp64 for fp64). The result of a row depends only on that row.
#pragma once
#include <ATen/core/Tensor.h>

namespace tessera::ops {

struct RmsNorm {
  at::Tensor y;
  at::Tensor sum;   // x itself if there is no residual
  at::Tensor rstd;  // accumulator type
};
// `residual` may be undefined.
RmsNorm rms_norm_forward(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps);
// Recomputes y from saved tensors. The recomputed y has the same bits as the result of forward.
at::Tensor rms_norm_apply(const at::Tensor& sum, const at::Tensor& rstd, const at::Tensor& weight);
// Returns the gradient of `sum`, which is also the gradient of x and of residual. The result is the gradient through y
// plus `dsum`, the gradient of RmsNorm::sum from its later uses. `dsum` may be undefined. `dweight` [hidden] has the
// accumulator type. The terms of dweight are summed in token order. The sum is added to `dweight` if `accumulate` is
// true, and otherwise overwrites it.
at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& dsum, const at::Tensor& sum,
                             const at::Tensor& rstd, const at::Tensor& weight, at::Tensor& dweight, bool accumulate);

}  // namespace tessera::ops
