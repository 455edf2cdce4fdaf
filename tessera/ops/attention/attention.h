// Causal softmax attention with grouped heads and document boundaries.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tessera/ops/rope/rope.h"

namespace tessera::ops {

// Sets, for this process, whether attention on a GPU must be deterministic. If `on` is true, attention uses flash
// attention, which is slower than cuDNN. Otherwise the kernel may sum with atomic additions, so the bits may differ
// between runs. Call this function before the first attention.
void set_deterministic(bool on);

struct AttentionShape {
  std::int64_t batch = 0, seq_len = 0;
  std::vector<int> kv_of_q;  // local key/value head that each local query head reads
  // The starts of documents in the flattened tokens [batch * seq_len]. The first entry is 0, the last entry is batch *
  // seq_len, and every multiple of seq_len is an entry. If the list is empty, each sequence is one document. A token
  // attends to itself and to earlier tokens of its document.
  std::vector<std::int64_t> cu_seqlens;
  double scale = 0;  // factor of the scores: 1 / sqrt(head_dim)
};
struct Attention {
  at::Tensor out;  // [tokens, q_heads * head_dim]
  // For backward: the log-sum-exp of the scores, one tensor for each kernel call.
  std::vector<at::Tensor> softmax;
};
// On a CPU, NaN and infinities in q, k, v and dout propagate as in the formula softmax(scale q k^T) v and its
// derivative. Only the tokens that a token attends to affect its result.
Attention attention_forward(const Qkv& qkv, const AttentionShape& shape);
// The gradient of a key/value head is the sum of the gradients that its query heads give. The sum is in fp32 (fp64 for
// fp64), in the order of the query heads, and is rounded once. On CUDA with bf16, the library may first round the
// gradient of each query head to bf16.
Qkv attention_backward(const at::Tensor& dout, const Qkv& qkv, const Attention& forward, const AttentionShape& shape);

}  // namespace tessera::ops
