// The matrix products of experts on a GPU. The number of rows of each expert stays in device memory, so that the host
// does not wait for the device. Internal to ops.
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/ops/router/selection.h"

namespace tessera::ops::cuda {

// Tensors as in grouped.h, but w and dw have the shape [local, out, in]. bf16 products use tensor cores. The bits of a
// result row do not depend on other rows. Dimensions that are not multiples of 8 are padded in scratch memory before
// the product. fp32 and fp64 products use kernels without tensor cores.
void grouped_fprop(const at::Tensor& x, const at::Tensor& w, const Selection& selection, at::Tensor& y);
void grouped_dgrad(const at::Tensor& dy, const at::Tensor& w, const Selection& selection, at::Tensor& dx);
// `dw` must have the type of dy.
void grouped_wgrad(const at::Tensor& dy, const at::Tensor& x, const Selection& selection, at::Tensor& dw);

}  // namespace tessera::ops::cuda
