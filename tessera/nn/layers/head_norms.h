// Norms of each head of q and of k with RoPE, without autograd. The autograd function of attention calls these
// functions.
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/nn/layers/attention.h"
#include "tessera/ops/head_norms/head_norm_rope.h"

namespace tessera::nn {

inline ops::HeadSizes head_sizes(const AttentionHeads& heads) {
  return {.q_heads = heads.q_heads, .kv_heads = heads.kv_heads, .head_dim = heads.head_dim};
}

// The operands of the norms and of RoPE in one microbatch. qkv: [tokens, (q_heads + 2 kv_heads) * head_dim] as
// q | k | v.
struct NormedAttention {
  const HeadNorms& norms;
  const AttentionHeads& heads;
  const ops::RopeTable& rope;
  at::Tensor qkv, positions;
};
ops::NormedHeads head_norms_forward(const PassState& pass, const NormedAttention& call);
// Computes NormedHeads::rotated again, with the same bits.
ops::Qkv recompute_head_norms(const PassState& pass, const NormedAttention& call, const at::Tensor& rstd);
// Takes the gradient of the rotated heads and returns the gradient of qkv. Produces the gradients of the norms'
// weights. Each tp rank contributes the part of its own heads.
at::Tensor head_norms_backward(const PassState& pass, const NormedAttention& call, const at::Tensor& rstd,
                               const ops::Qkv& gradient);

}  // namespace tessera::nn
