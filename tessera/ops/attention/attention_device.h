// Attention on a GPU. Arguments have been checked. Internal to ops.
#pragma once
#include "tessera/ops/attention/attention.h"

namespace tessera::ops::cuda {

// bf16 with head_dim a multiple of 8, up to 128: cuDNN's kernel for whole sequences, flash attention (Dao 2023) for
// documents and under deterministic algorithms (at::globalContext), key heads not repeated where every one has as many
// query heads. Everything else by plain matrix products in the accumulator type, whose memory grows with seq_len^2.
Attention attention_forward(const Qkv& qkv, const AttentionShape& shape);
Qkv attention_backward(const at::Tensor& dout, const Qkv& qkv, const Attention& forward, const AttentionShape& shape);

}  // namespace tessera::ops::cuda
