// Attention of new tokens to the keys and values of one sequence, which a cache holds. For generation: no backward.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::ops {

struct CachedAttention {
  // [capacity, kv_heads, head_dim]: row t belongs to token t of the sequence, the new tokens included.
  at::Tensor keys, values;
  std::int64_t first = 0;    // the number of tokens before the new tokens
  std::vector<int> kv_of_q;  // as in AttentionShape
  double scale = 0;          // as in AttentionShape
};
// q: the new tokens, [count, q_heads, head_dim]. New token i attends to the tokens 0 to first + i. Returns [count,
// q_heads * head_dim]. If `first` is 0, the result has the bits of attention_forward. All other sums are in the
// accumulator type and rounded once. Rows after first + count are not read. Throws Error if the cache has fewer than
// first + count rows.
at::Tensor cached_attention(const at::Tensor& q, const CachedAttention& cached);

}  // namespace tessera::ops
