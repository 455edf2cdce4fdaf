// The formulas of a transformer over logical tensors. Tests compare layers with these formulas.
#pragma once
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rsqrt.h>

namespace tessera::nn {

// Returns the norm over the last dimension, with the eps of LayerRank::norm.
inline at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& weight) {
  return x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + 1e-3) * weight;
}

// Returns x w^T.
inline at::Tensor plain_linear(const at::Tensor& x, const at::Tensor& weight) {
  return at::matmul(x, weight.t());
}

// The rows of gate_up are first gate, then up.
inline at::Tensor plain_feed_forward(const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down) {
  const std::int64_t inner = gate_up.size(0) / 2;
  const at::Tensor gate = plain_linear(x, gate_up.narrow(0, 0, inner));
  const at::Tensor up = plain_linear(x, gate_up.narrow(0, inner, inner));
  return plain_linear(gate * gate.sigmoid() * up, down);
}

}  // namespace tessera::nn
