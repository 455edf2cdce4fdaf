// Attention of new tokens of one sequence to the keys and values in its cache. Used for generation, so there is no
// backward pass.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::ops {

struct CachedAttention {
  // [capacity, kv_heads, head_dim]. Row t belongs to token t of the sequence. The rows of the new tokens are already
  // written.
  at::Tensor keys, values;
  std::int64_t first = 0;    // number of tokens before the new tokens
  std::vector<int> kv_of_q;  // AttentionShape::kv_of_q
  double scale = 0;          // AttentionShape::scale
};
// q: the new tokens, [count, q_heads, head_dim]. New token i attends to the tokens 0 to first + i. Returns [count,
// q_heads * head_dim]. If `first` is 0, the result has the bits of attention_forward. Otherwise sums are in the
// accumulator type and are rounded once. Row first + count and later rows are not read. Throws Error if the cache has
// fewer than first + count rows.
at::Tensor cached_attention(const at::Tensor& q, const CachedAttention& cached);

}  // namespace tessera::ops
