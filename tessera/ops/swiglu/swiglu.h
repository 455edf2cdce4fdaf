// SwiGLU (Shazeer 2020): out = silu(gate) * up, where gate_up [tokens, 2 f] is stacked as gate | up. SwiGLU is computed
// in fp32 (fp64 for fp64) and rounded once. Results do not depend on the position of an element.
#pragma once
#include <ATen/core/Tensor.h>

namespace tessera::ops {

at::Tensor swiglu_forward(const at::Tensor& gate_up);
at::Tensor swiglu_backward(const at::Tensor& dout, const at::Tensor& gate_up);  // returns the gradient of gate_up

struct SwigluBackward {
  at::Tensor gradient;  // equal to the result of swiglu_backward
  at::Tensor out;       // equal to the result of swiglu_forward
};
// Computes the gradient and the output in one pass over gate_up.
SwigluBackward swiglu_backward_with_output(const at::Tensor& dout, const at::Tensor& gate_up);

}  // namespace tessera::ops
