// Norms of each head of q and of k, in front of RoPE, without autograd: for the function of attention.
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/nn/attention.h"

namespace tessera::nn {

// What is kept of the norms for backward. A rank without heads has tensors of no rows.
struct HeadStatistics {
  at::Tensor q, k;            // before the norms: [tokens * heads, head_dim]
  at::Tensor q_rstd, k_rstd;  // [tokens * heads], accumulator type
};
struct NormedQkv {
  at::Tensor qkv;  // as the argument, q and k normed
  HeadStatistics statistics;
};
// qkv: [tokens, (q_heads + 2 kv_heads) * head_dim] as q | k | v.
NormedQkv head_norms_forward(Context& context, const HeadNorms& norms, const AttentionHeads& heads,
                             const at::Tensor& qkv);
// The same bits again, from what was kept. v: [tokens, kv_heads, head_dim].
at::Tensor head_norms_again(Context& context, const HeadNorms& norms, const AttentionHeads& heads,
                            const HeadStatistics& kept, const at::Tensor& v);
// gradient: of the normed qkv -> of qkv. Produces the weights' gradients, of which each tp rank has a part: that of its
// own heads.
at::Tensor head_norms_backward(Context& context, const HeadNorms& norms, const AttentionHeads& heads,
                               const HeadStatistics& kept, const at::Tensor& gradient);

}  // namespace tessera::nn
