#include "tessera/ops/swiglu/swiglu_operand.h"

#include "tessera/base/error.h"
#include "tessera/ops/gemm/whole_cast.h"
#include "tessera/ops/swiglu/swiglu.h"
#include "tessera/ops/swiglu/swiglu_kernels.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

bool is_fp8_with_one_scale(const Quantization& as) {
  return has_one_scale(as.encoding) && as.encoding.element != quant::Element::e2m1 &&
         as.whole.rows.multiplier.defined();
}

// Returns true if a fused kernel can compute SwiGLU of gate_up and cast its result.
bool has_cast(const at::Tensor& gate_up, const Quantization& as) {
  return (on_cuda(gate_up) || is_dry(gate_up)) && gate_up.scalar_type() == at::kBFloat16 && gate_up.dim() == 2 &&
         is_fp8_with_one_scale(as);
}
bool has_backward_cast(const at::Tensor& gate_up, const Quantization& as, const Quantization* out_as) {
  if (!has_cast(gate_up, as) || gate_up.size(1) % (2 * kCastFeatures) != 0) return false;
  return out_as == nullptr || (is_fp8_with_one_scale(*out_as) && out_as->encoding.element == quant::Element::e4m3);
}

const quant::bfloat16* bf16_of(const at::Tensor& matrix) {
  return static_cast<const quant::bfloat16*>(matrix.const_data_ptr());
}

Quantization by_columns(const Quantization& out_as) {
  return {.encoding = out_as.encoding, .sides = Sides::columns, .whole = out_as.whole};
}

SwigluOperands backward_in_steps(const at::Tensor& dout, const at::Tensor& gate_up, const Quantization& as,
                                 const Quantization* out_as) {
  if (out_as == nullptr) return {.gradient = quantize(swiglu_backward(dout, gate_up), as), .out = {}};
  const SwigluBackward swiglu = swiglu_backward_with_output(dout, gate_up);
  return {.gradient = quantize(swiglu.gradient, as), .out = quantize(swiglu.out, by_columns(*out_as)).columns};
}

}  // namespace

Operands swiglu_operands(const at::Tensor& gate_up, const Quantization& as) {
  if (!has_cast(gate_up, as)) return quantize(swiglu_forward(gate_up), as);
  const at::Tensor input = dense(gate_up, 2, "swiglu gate_up");
  TESSERA_CHECK(input.size(1) % 2 == 0, "swiglu gate_up: {} columns, expected an even number", input.size(1));
  const std::int64_t features = input.size(1) / 2;
  WholeCast result = whole_cast({.rows = input.size(0), .cols = features}, as, input.device());
  if (is_dry(input)) {
    report(memory_work("swiglu", bytes_of({input, result.operands.rows.codes, result.operands.columns.codes})));
    return std::move(result.operands);
  }
  cuda_only<cuda::swiglu_forward_cast>({.features = features, .gate_up = bf16_of(input), .result = result.cast},
                                       stream_of(input));
  return std::move(result.operands);
}

SwigluOperands swiglu_backward_operands(const at::Tensor& dout, const at::Tensor& gate_up, const Quantization& as,
                                        const Quantization* out_as) {
  if (!has_backward_cast(gate_up, as, out_as)) return backward_in_steps(dout, gate_up, as, out_as);
  require_one_device({dout, gate_up}, "swiglu_backward");
  const at::Tensor input = dense(gate_up, 2, "swiglu gate_up");
  const std::int64_t tokens = input.size(0), features = input.size(1) / 2;
  const at::Tensor gradient = dense_like(dout, {tokens, features}, at::kBFloat16, "swiglu dout");
  WholeCast result = whole_cast({.rows = tokens, .cols = 2 * features}, as, input.device()), out;
  if (out_as != nullptr) out = whole_cast({.rows = tokens, .cols = features}, by_columns(*out_as), input.device());
  if (is_dry(input)) {
    const Operands& made = result.operands;
    report(memory_work("swiglu backward",
                       bytes_of({input, gradient, made.rows.codes, made.columns.codes, out.operands.columns.codes})));
    return {.gradient = std::move(result.operands), .out = std::move(out.operands.columns)};
  }
  cuda_only<cuda::swiglu_backward_cast>({.features = features,
                                         .gate_up = bf16_of(input),
                                         .dout = bf16_of(gradient),
                                         .result = result.cast,
                                         .output = out.cast},
                                        stream_of(input));
  return {.gradient = std::move(result.operands), .out = std::move(out.operands.columns)};
}

}  // namespace tessera::ops
