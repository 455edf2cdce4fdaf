// SwiGLU with results in a number format for products. The operands have the same bytes as swiglu.h followed by
// quantize (operand.h). On a GPU this is one pass over memory without bf16 results, if the encoding has one scale for a
// whole matrix.
#pragma once
#include "tessera/ops/gemm/operand.h"

namespace tessera::ops {

// Returns the operands of swiglu_forward(gate_up), with the same bytes as from its bf16 result.
Operands swiglu_operands(const at::Tensor& gate_up, const Quantization& as);

struct SwigluOperands {
  Operands gradient;  // of swiglu_backward(dout, gate_up)
  Operand out;        // of swiglu_forward(gate_up) by its columns, if requested
};
// `out_as` is the quantization of out by its columns, for a backward pass that recomputes out. Null: out is not
// computed. The amax of out is not computed here, because forward computed it.
SwigluOperands swiglu_backward_operands(const at::Tensor& dout, const at::Tensor& gate_up, const Quantization& as,
                                        const Quantization* out_as = nullptr);

}  // namespace tessera::ops
