// SwiGLU whose results products take in a number format: the operands that swiglu.h followed by quantize (operand.h)
// gives, with the same bytes. On a GPU it is one pass over memory where the encoding has one scale for a whole matrix,
// and nothing is stored in bf16.
#pragma once
#include "tessera/ops/gemm/operand.h"

namespace tessera::ops {

// Returns the operands of swiglu_forward(gate_up), as they would be made from its bf16 result.
Operands swiglu_operands(const at::Tensor& gate_up, const Quantization& as);

struct SwigluOperands {
  Operands gradient;  // of swiglu_backward(dout, gate_up)
  Operand out;        // of swiglu_forward(gate_up) by its columns, where it was asked for
};
// again: how out is quantized by its columns, for who needs it in backward; null: it is not made. Its amax is not
// taken: forward took it.
SwigluOperands swiglu_backward_operands(const at::Tensor& dout, const at::Tensor& gate_up, const Quantization& as,
                                        const Quantization* again = nullptr);

}  // namespace tessera::ops
