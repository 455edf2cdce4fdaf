// The feed-forward part of a block: y = down(swiglu(gate_up(norm(x + residual)))).
//
// One function, so that SwiGLU's results need not exist in bf16: forward's goes into the product with down as its
// operand, backward's gradient into those with gate_up. Recompute::selective keeps neither the norm's result nor
// SwiGLU's.
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/nn/linear.h"

namespace tessera::nn {

struct FeedForward {
  ColumnLinear gate_up;  // with the norm; its rows are gate | up
  RowLinear down;
};
// x, residual: [own tokens, hidden]; residual may be undefined. tokens: of the whole microbatch. y: [own tokens,
// hidden].
NormedLinear feed_forward(Context& context, const FeedForward& layers, const at::Tensor& x, const at::Tensor& residual,
                          std::int64_t tokens);

}  // namespace tessera::nn
