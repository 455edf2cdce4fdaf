// SwiGLU (Shazeer 2020): out = silu(gate) * up with gate_up [tokens, 2 f] as gate | up, in fp32 (fp64), rounded once.
// Results do not depend on an element's position.
#pragma once
#include <ATen/core/Tensor.h>

namespace tessera::ops {

at::Tensor swiglu_forward(const at::Tensor& gate_up);
at::Tensor swiglu_backward(const at::Tensor& dout, const at::Tensor& gate_up);  // gradient of gate_up

struct SwigluAgain {
  at::Tensor gradient;  // swiglu_backward's
  at::Tensor out;       // swiglu_forward's
};
// Both in one pass over gate_up.
SwigluAgain swiglu_backward_again(const at::Tensor& dout, const at::Tensor& gate_up);

}  // namespace tessera::ops
