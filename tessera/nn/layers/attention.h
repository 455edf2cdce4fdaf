// The part of attention between the qkv projection and the output projection: rotary embedding and softmax attention
// over this rank's heads. Some models normalize each head of q and of k before the rotary embedding.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "tessera/nn/key_value_cache.h"
#include "tessera/nn/layers/norm.h"
#include "tessera/nn/pass_state.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/rope/rope.h"

namespace tessera::nn {

struct AttentionHeads {
  std::int64_t q_heads = 0, kv_heads = 0, head_dim = 0;  // sizes of this tp rank's part
  std::vector<int> kv_of_q;                              // local key/value head of each local query head
};
// Norms over each head's elements. All heads of q share one weight [head_dim]; all heads of k share another.
struct HeadNorms {
  Norm q, k;
};
// The positions and documents of one microbatch's tokens.
struct TokenLayout {
  std::int64_t batch = 0, seq_len = 0;
  at::Tensor positions;  // [batch * seq_len] int64
  // Boundaries of documents (ops::AttentionShape); empty: one document per sequence.
  std::vector<std::int64_t> cu_seqlens;
  at::Tensor counted;  // [batch * seq_len] bool: tokens whose targets are not masked; only experts use it
};

// Returns attention with autograd: qkv [tokens, (q_heads + 2 kv_heads) * head_dim] -> [tokens, q_heads * head_dim].
// `heads` and `norms` must outlive the autograd graph. With norms, Recompute::selective keeps the inputs of the norms;
// backward then repeats the norms and the rotation.
at::Tensor attention(const PassState& pass, const at::Tensor& qkv, const AttentionHeads& heads,
                     const std::optional<HeadNorms>& norms, const TokenLayout& tokens, const ops::RopeTable& rope);

// The position in a cache at which a forward pass stores its tokens: the part of one layer, and the number of tokens
// that are already stored.
struct CachePlace {
  LayerCache& layer;
  std::int64_t first = 0;
};
// Stores the keys and values of the tokens in the cache. Returns the attention of each token to all stored tokens up to
// this token. `tokens` describes one sequence without documents. Without gradients.
at::Tensor cached_attention(const PassState& pass, const at::Tensor& qkv, const AttentionHeads& heads,
                            const std::optional<HeadNorms>& norms, const TokenLayout& tokens,
                            const ops::RopeTable& rope, const CachePlace& place);

}  // namespace tessera::nn
