// Root-mean-square norm with an optional residual addition in front of it.
//   sum = x + residual;  y = sum * rstd * weight,  rstd = 1 / sqrt(mean(sum^2) + eps)   (Zhang & Sennrich 2019)
// x, residual, sum, y: [tokens, hidden] in the model's type; rstd: [tokens], weight: [hidden]; statistics in fp32 (fp64
// for fp64). A row's result depends on that row alone.
#pragma once
#include <ATen/core/Tensor.h>

namespace tessera::ops {

struct RmsNorm {
  at::Tensor y;
  at::Tensor sum;   // x itself when there is no residual
  at::Tensor rstd;  // accumulator type
};
// residual may be undefined.
RmsNorm rms_norm_forward(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps);
// y again from what was saved (recompute): the same bits as forward.
at::Tensor rms_norm_apply(const at::Tensor& sum, const at::Tensor& rstd, const at::Tensor& weight);
// Returns the gradient of sum (and so of x and of residual): norm backward + dsum (may be undefined). dweight [hidden]
// in the accumulator type: written, or added to with `accumulate`; summed over tokens in token order.
at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& dsum, const at::Tensor& sum,
                             const at::Tensor& rstd, const at::Tensor& weight, at::Tensor& dweight, bool accumulate);

}  // namespace tessera::ops
