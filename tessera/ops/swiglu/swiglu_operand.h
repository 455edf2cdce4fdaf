// SwiGLU whose results are operands of products in a number format. The operands have the same bytes as quantize
// (operand.h) gives for the results of swiglu.h. If the encoding has one scale for a whole matrix, a GPU does this in
// one pass over memory and stores no bf16 results.
#pragma once
#include "tessera/ops/gemm/operand.h"

namespace tessera::ops {

// Returns the operands of the result of swiglu_forward(gate_up).
Operands swiglu_operands(const at::Tensor& gate_up, const Quantization& as);

struct SwigluOperands {
  Operands gradient;  // the operands of swiglu_backward(dout, gate_up)
  Operand out;        // the operand of swiglu_forward(gate_up) by its columns, if requested
};
// `out_as` is the quantization of out by its columns; a backward pass that recomputes out needs this operand. If
// `out_as` is null, out is not computed. The function does not compute the amax of out, because forward has computed
// it.
SwigluOperands swiglu_backward_operands(const at::Tensor& dout, const at::Tensor& gate_up, const Quantization& as,
                                        const Quantization* out_as = nullptr);

}  // namespace tessera::ops
