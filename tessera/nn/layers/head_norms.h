// Norms of each head of q and of k before RoPE, without autograd. The autograd function of attention calls these
// functions.
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/nn/layers/attention.h"

namespace tessera::nn {

// Tensors of the norms that are kept for backward. On a rank without heads, these tensors have no rows.
struct HeadStatistics {
  at::Tensor q, k;            // values before the norms: [tokens * heads, head_dim]
  at::Tensor q_rstd, k_rstd;  // [tokens * heads], accumulator type
};
struct NormedQkv {
  at::Tensor qkv;  // the argument qkv with normalized q and k
  HeadStatistics statistics;
};
// qkv: [tokens, (q_heads + 2 kv_heads) * head_dim] as q | k | v.
NormedQkv head_norms_forward(const PassState& pass, const HeadNorms& norms, const AttentionHeads& heads,
                             const at::Tensor& qkv);
// Computes NormedQkv::qkv again, with the same bits, from the kept tensors and v. v: [tokens, kv_heads, head_dim].
at::Tensor recompute_head_norms(const PassState& pass, const HeadNorms& norms, const AttentionHeads& heads,
                                const HeadStatistics& kept, const at::Tensor& v);
// Takes the gradient of the normalized qkv and returns the gradient of qkv. Produces the gradients of the norms'
// weights. Each tp rank contributes the part of its own heads.
at::Tensor head_norms_backward(const PassState& pass, const HeadNorms& norms, const AttentionHeads& heads,
                               const HeadStatistics& kept, const at::Tensor& gradient);

}  // namespace tessera::nn
