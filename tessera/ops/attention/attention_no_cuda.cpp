#include "tessera/base/error.h"
#include "tessera/ops/attention/attention_device.h"

namespace tessera::ops::cuda {

Attention attention_forward(const Qkv&, const AttentionShape&) {
  throw Error("attention: this build has no CUDA");
}
Qkv attention_backward(const at::Tensor&, const Qkv&, const Attention&, const AttentionShape&) {
  throw Error("attention: this build has no CUDA");
}
at::Tensor cached_attention(const at::Tensor&, const CachedAttention&) {
  throw Error("cached attention: this build has no CUDA");
}

}  // namespace tessera::ops::cuda
