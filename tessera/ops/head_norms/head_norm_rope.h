// RMS norms of each head of q and of k, followed by the rotary position embedding: rms_norm.h and rope.h in one pass
// over the stacked q | k | v. The normalized values are rounded to the model's type before the rotation, as if the two
// operators ran one after the other. On the CPU the results have the same bits as the two operators. On CUDA the sum
// over a head and the sum of a weight's gradient add in another order. The result of a head depends only on that head
// and its position.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/ops/rope/rope.h"

namespace tessera::ops {

struct HeadNorm {
  at::Tensor weight;  // [head_dim], in the model's type
  double eps = 0;
};
struct HeadSizes {
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
};
// The operands that forward and backward share. `qkv`: [tokens, (q_heads + 2 kv_heads) * head_dim], stacked as
// q | k | v, before the norms. `positions` and `rope` are those of split_rope_forward.
struct HeadNormRope {
  at::Tensor qkv, positions;
  HeadSizes heads;
  HeadNorm q, k;
  RopeTable rope;
};

// Returns v as a view of qkv: [tokens, kv_heads, head_dim].
at::Tensor values_of(const at::Tensor& qkv, const HeadSizes& heads);

struct NormedHeads {
  Qkv rotated;      // v is a view of HeadNormRope::qkv
  at::Tensor rstd;  // [tokens, q_heads + kv_heads], in the accumulator type: 1 / sqrt(mean(head^2) + eps)
};
NormedHeads head_norm_rope_forward(const HeadNormRope& call);
// Computes NormedHeads::rotated again from rstd, with the same bits.
Qkv head_norm_rope_apply(const HeadNormRope& call, const at::Tensor& rstd);

struct HeadNormGradients {
  at::Tensor qkv;                 // the gradient of HeadNormRope::qkv
  at::Tensor q_weight, k_weight;  // [head_dim], in the accumulator type: sums over tokens and heads
};
// Takes the gradient of NormedHeads::rotated.
HeadNormGradients head_norm_rope_backward(const HeadNormRope& call, const at::Tensor& rstd, const Qkv& gradient);

}  // namespace tessera::ops
