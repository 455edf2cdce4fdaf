// Attention on a GPU. The caller has checked the arguments. Internal to ops.
#pragma once
#include "tessera/ops/attention/attention.h"

namespace tessera::ops::cuda {

// bf16 with a head_dim of at most 128 that is a multiple of 8 uses library kernels: cuDNN for whole sequences, and
// flash attention (Dao 2023) for documents and for deterministic algorithms (at::globalContext). Key/value heads are
// not expanded if each has the same number of query heads. All other cases use matrix products in the accumulator type,
// whose memory grows with seq_len^2.
Attention attention_forward(const Qkv& qkv, const AttentionShape& shape);
Qkv attention_backward(const at::Tensor& dout, const Qkv& qkv, const Attention& forward, const AttentionShape& shape);

}  // namespace tessera::ops::cuda
