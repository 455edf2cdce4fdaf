// The feed-forward part of a block: y = down(swiglu(gate_up(norm(x + residual)))).
//
// The part is one autograd function, so that the results of SwiGLU need not be stored in bf16. Forward computes
// SwiGLU's output directly as an operand of the product with down. Backward computes SwiGLU's gradient directly as an
// operand of the products with gate_up. Recompute::selective keeps neither the norm's output nor SwiGLU's output.
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/nn/layers/linear.h"

namespace tessera::nn {

struct FeedForward {
  ColumnLinear gate_up;  // includes the norm, if the feed-forward part has one; the rows of the weight are gate | up
  RowLinear down;
};
struct FeedForwardOutput {
  SummedParts y;   // [own tokens, hidden]
  at::Tensor sum;  // as in NormedLinear
};
// x, residual: [own tokens, hidden]; residual may be undefined. tokens: number of tokens in the whole microbatch.
FeedForwardOutput feed_forward(const PassState& pass, const FeedForward& layers, const SummedParts& x,
                               const at::Tensor& residual, std::int64_t tokens);

}  // namespace tessera::nn
