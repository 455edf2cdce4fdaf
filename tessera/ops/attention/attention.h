// Causal softmax attention with grouped heads and document boundaries.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tessera/ops/rope/rope.h"

namespace tessera::ops {

// Of this process: whether attention on a GPU may not sum with atomics, which gives other bits each time. It takes
// flash attention then, which is slower. Set before the first call.
void set_deterministic(bool on);

struct AttentionShape {
  std::int64_t batch = 0, seq_len = 0;
  std::vector<int> kv_of_q;  // local key/value head that each local query head reads
  // Starts of documents in the flattened tokens [batch * seq_len], first 0, last batch * seq_len, with every multiple
  // of seq_len among them; empty: one document a sequence. A token attends to earlier ones of its document only.
  std::vector<std::int64_t> cu_seqlens;
  double scale = 0;  // of the scores; 1 / sqrt(head_dim)
};
struct Attention {
  at::Tensor out;                   // [tokens, q_heads * head_dim]
  std::vector<at::Tensor> softmax;  // what backward needs besides q, k, v, out (log-sum-exp of each call)
};
// On a CPU NaN and infinities in q, k, v and dout spread as in softmax(scale q k^T) v and its derivative over the
// tokens that a token sees.
Attention attention_forward(const Qkv& qkv, const AttentionShape& shape);
// Gradients of a key/value head from its query heads are added in fp32 (fp64) in head order, rounded once. On CUDA in
// bf16 the library may round each query head's to bf16 first.
Qkv attention_backward(const at::Tensor& dout, const Qkv& qkv, const Attention& forward, const AttentionShape& shape);

}  // namespace tessera::ops
