// The products of experts on a GPU. The sizes of the groups stay in device memory, and the host does not wait. Internal
// to ops.
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/ops/experts/selection.h"

namespace tessera::ops::cuda {

// Tensors as in grouped.h; w and dw have the shape [local, out, in]. Products of bf16 use tensor cores; the bits of a
// row do not depend on other rows. Sizes that are not multiples of 8 are padded in scratch memory first. fp32 and fp64
// use plain kernels.
void grouped_fprop(const at::Tensor& x, const at::Tensor& w, const Selection& selection, at::Tensor& y);
void grouped_dgrad(const at::Tensor& dy, const at::Tensor& w, const Selection& selection, at::Tensor& dx);
// dw has the type of dy.
void grouped_wgrad(const at::Tensor& dy, const at::Tensor& x, const Selection& selection, at::Tensor& dw);

}  // namespace tessera::ops::cuda
