// Attention on a GPU. The caller has checked the arguments. Internal to ops.
#pragma once
#include <vector>

#include "tessera/ops/attention/attention.h"
#include "tessera/ops/attention/cached_attention.h"

namespace tessera::ops::cuda {

// Uses library kernels for bf16 if head_dim is a multiple of 8 and at most 128. cuDNN computes whole sequences. Flash
// attention (Dao 2023) computes documents, and all attention if at::globalContext requests deterministic algorithms.
// Key/value heads are not expanded if each of them has the same number of query heads. All other cases use matrix
// products in the accumulator type. The memory of these products grows with seq_len^2.
Attention attention_forward(const Qkv& qkv, const AttentionShape& shape);
Qkv attention_backward(const at::Tensor& dout, const Qkv& qkv, const Attention& forward, const AttentionShape& shape);
// Uses flash attention for a single bf16 token. All other cases use matrix products in the accumulator type.
at::Tensor cached_attention(const at::Tensor& q, const CachedAttention& cached);

inline constexpr std::int64_t kLargestHead = 128;  // largest head_dim of cuDNN's backward kernel on Hopper
// Returns true if every key/value head has the same number of query heads and these are consecutive. The library
// kernels then derive the key/value head from the number of the query head.
bool is_regular(const std::vector<int>& kv_of_q, std::int64_t kv_heads);
// Copies the key/value heads in `tensor` [tokens, kv_heads, head_dim] to [tokens, q_heads, head_dim]: each query head
// gets a copy of its key/value head.
at::Tensor expanded(const at::Tensor& tensor, const std::vector<int>& kv_of_q);

}  // namespace tessera::ops::cuda
