// Attention on a GPU. The caller has checked the arguments. Internal to ops.
#pragma once
#include <vector>

#include "tessera/ops/attention/attention.h"
#include "tessera/ops/attention/cached_attention.h"

namespace tessera::ops::cuda {

// bf16 with a head_dim of at most 128 that is a multiple of 8 uses library kernels: cuDNN for whole sequences, and
// flash attention (Dao 2023) for documents and for deterministic algorithms (at::globalContext). Key/value heads are
// not expanded if each has the same number of query heads. All other cases use matrix products in the accumulator type,
// whose memory grows with seq_len^2.
Attention attention_forward(const Qkv& qkv, const AttentionShape& shape);
Qkv attention_backward(const at::Tensor& dout, const Qkv& qkv, const Attention& forward, const AttentionShape& shape);
// One bf16 token uses flash attention. All other cases use matrix products in the accumulator type.
at::Tensor cached_attention(const at::Tensor& q, const CachedAttention& cached);

inline constexpr std::int64_t kLargestHead = 128;  // limit of cuDNN's backward on Hopper
// Returns true if every key/value head has the same number of query heads, in order. The kernels then find the
// key/value head of a query head themselves.
bool is_regular(const std::vector<int>& kv_of_q, std::int64_t kv_heads);
// Returns `tensor` [tokens, heads, head_dim] with one head per query head.
at::Tensor expanded(const at::Tensor& tensor, const std::vector<int>& kv_of_q);

}  // namespace tessera::ops::cuda
