// The formulas of a transformer over logical tensors, as tests compare with them.
#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/rsqrt.h>

namespace tessera::nn {

// Over the last dimension, with LayerRank::norm's eps.
inline at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight) {
  return x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + 1e-3) * weight;
}

}  // namespace tessera::nn
