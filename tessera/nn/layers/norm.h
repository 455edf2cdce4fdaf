// Root-mean-square norm with a residual stream. The norm's weight is replicated over all ranks.
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/nn/layers/dropout.h"
#include "tessera/nn/parallel/summed_parts.h"
#include "tessera/nn/weight.h"
#include "tessera/ops/norm/rms_norm.h"

namespace tessera::nn {

struct Norm {
  Weight weight;  // [hidden]
  double eps = 1e-5;
  InputDropout dropout = {};  // dropout of x
};

// Runs the forward of the norm without autograd, for autograd functions that include a norm. x, residual: [own tokens,
// hidden]; x is the list of a matrix's parts (SummedParts); residual may be undefined.
ops::RmsNorm norm_forward(const PassState& pass, const Norm& norm, at::TensorList x, const at::Tensor& residual);
// Computes the norm's output again, with the same bits, from the saved sum and rstd.
at::Tensor recompute_norm(const PassState& pass, const Norm& norm, const at::Tensor& sum, const at::Tensor& rstd);
// Produces the weight's gradient. Returns the gradients of x and of the residual. dy is a list of parts. `dsum` may be
// undefined.
ops::RmsNormGradients norm_backward(const PassState& pass, const Norm& norm, at::TensorList dy, const at::Tensor& dsum,
                                    const at::Tensor& sum, const at::Tensor& rstd);

// Returns y = norm(dropout(x) + residual), with autograd.
at::Tensor rms_norm(const PassState& pass, const Norm& norm, const SummedParts& x, const at::Tensor& residual);

}  // namespace tessera::nn
