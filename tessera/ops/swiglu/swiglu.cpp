#include "tessera/ops/swiglu/swiglu.h"

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/swiglu/swiglu_kernels.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

at::Tensor checked(const at::Tensor& gate_up) {
  at::Tensor input = dense(gate_up, 2, "swiglu gate_up");
  TESSERA_CHECK(input.size(1) % 2 == 0, "swiglu gate_up: {} columns, expected an even number", input.size(1));
  return input;
}

SwigluBackward backward(const at::Tensor& dout, const at::Tensor& gate_up, bool with_output) {
  require_one_device({dout, gate_up}, "swiglu_backward");
  const at::Tensor input = checked(gate_up);
  const at::Tensor gradient = dense_like(dout, {input.size(0), input.size(1) / 2}, input.scalar_type(), "swiglu dout");
  at::Tensor result = make(input.sizes(), input.scalar_type(), input.device()), out;
  if (with_output) out = make(gradient.sizes(), input.scalar_type(), input.device());
  run_kernel(memory_work("swiglu backward", bytes_of({input, gradient, result, out})), input, cpu::swiglu_backward,
             cuda_only<cuda::swiglu_backward>,
             {.type = to_dtype(input.scalar_type()),
              .tokens = input.size(0),
              .features = input.size(1) / 2,
              .gate_up = input.const_data_ptr(),
              .dout = gradient.const_data_ptr(),
              .result = result.mutable_data_ptr(),
              .output = with_output ? out.mutable_data_ptr() : nullptr});
  return {result, out};
}

}  // namespace

at::Tensor swiglu_forward(const at::Tensor& gate_up) {
  const at::Tensor input = checked(gate_up);
  at::Tensor out = make({input.size(0), input.size(1) / 2}, input.scalar_type(), input.device());
  run_kernel(memory_work("swiglu", bytes_of({input, out})), input, cpu::swiglu_forward, cuda_only<cuda::swiglu_forward>,
             {.type = to_dtype(input.scalar_type()),
              .tokens = input.size(0),
              .features = input.size(1) / 2,
              .gate_up = input.const_data_ptr(),
              .result = out.mutable_data_ptr()});
  return out;
}

at::Tensor swiglu_backward(const at::Tensor& dout, const at::Tensor& gate_up) {
  return backward(dout, gate_up, false).gradient;
}

SwigluBackward swiglu_backward_with_output(const at::Tensor& dout, const at::Tensor& gate_up) {
  return backward(dout, gate_up, true);
}

}  // namespace tessera::ops
