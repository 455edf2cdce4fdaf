#include "tessera/ops/norm/rms_norm.h"

#include "tessera/ops/aten_types.h"
#include "tessera/ops/norm/rms_norm_kernels.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

RmsNormShape shape_of(const at::Tensor& x) {
  return {.type = to_dtype(x.scalar_type()), .tokens = x.size(0), .hidden = x.size(1)};
}

RmsNorm forward_dry(const at::Tensor& input, const at::Tensor& residual) {
  RmsNorm result{.y = make(input.sizes(), input.scalar_type(), input.device()),
                 .sum = residual.defined() ? make(input.sizes(), input.scalar_type(), input.device()) : input,
                 .rstd = make({input.size(0)}, accumulator_type(input.scalar_type()), input.device())};
  const at::Tensor sum = residual.defined() ? result.sum : at::Tensor();
  report(memory_work("norm", bytes_of({input, residual, sum, result.y})));
  return result;
}

// Computes the addition and the norm in one kernel instead of two.
RmsNorm forward_on_cuda(const at::Tensor& input, const at::Tensor& residual, const at::Tensor& weight, double eps) {
  const at::ScalarType type = input.scalar_type();
  const at::Tensor scale = dense_like(weight, {input.size(1)}, type, "rms_norm weight");
  at::Tensor other;
  if (residual.defined()) other = dense_like(residual, input.sizes(), type, "rms_norm residual");
  RmsNorm result{.y = make(input.sizes(), type, input.device()),
                 .sum = other.defined() ? make(input.sizes(), type, input.device()) : input,
                 .rstd = make({input.size(0)}, accumulator_type(type), input.device())};
  cuda::rms_norm_forward(shape_of(input),
                         {.x = input.const_data_ptr(),
                          .residual = other.defined() ? other.const_data_ptr() : nullptr,
                          .weight = scale.const_data_ptr(),
                          .eps = eps,
                          .sum = other.defined() ? result.sum.mutable_data_ptr() : nullptr,
                          .y = result.y.mutable_data_ptr(),
                          .rstd = result.rstd.mutable_data_ptr()},
                         stream_of(input));
  return result;
}

}  // namespace

RmsNorm rms_norm_forward(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps) {
  require_one_device({x, residual, weight}, "rms_norm_forward");
  const at::Tensor input = dense(x, 2, "rms_norm x");
  if (is_dry(input)) return forward_dry(input, residual);
  if (on_cuda(input)) return forward_on_cuda(input, residual, weight, eps);
  at::Tensor other;
  if (residual.defined()) other = dense_like(residual, input.sizes(), input.scalar_type(), "rms_norm residual");
  RmsNorm result;
  result.sum = other.defined() ? make(input.sizes(), input.scalar_type()) : input;
  result.rstd = make({input.size(0)}, accumulator_type(input.scalar_type()));
  cpu::rms_norm_statistics(shape_of(input), {.x = input.const_data_ptr(),
                                             .residual = other.defined() ? other.const_data_ptr() : nullptr,
                                             .eps = eps,
                                             .sum = other.defined() ? result.sum.mutable_data_ptr() : nullptr,
                                             .rstd = result.rstd.mutable_data_ptr()});
  result.y = rms_norm_apply(result.sum, result.rstd, weight);
  return result;
}

at::Tensor rms_norm_apply(const at::Tensor& sum, const at::Tensor& rstd, const at::Tensor& weight) {
  require_one_device({sum, rstd, weight}, "rms_norm_apply");
  const at::Tensor input = dense(sum, 2, "rms_norm sum");
  const at::Tensor scale = dense_like(weight, {input.size(1)}, input.scalar_type(), "rms_norm weight");
  const at::Tensor statistics =
      dense_like(rstd, {input.size(0)}, accumulator_type(input.scalar_type()), "rms_norm rstd");
  at::Tensor y = make(input.sizes(), input.scalar_type(), input.device());
  run_kernel(memory_work("norm again", bytes_of({input, y})), input, cpu::rms_norm_apply, cuda::rms_norm_apply,
             shape_of(input),
             {.sum = input.const_data_ptr(),
              .rstd = statistics.const_data_ptr(),
              .weight = scale.const_data_ptr(),
              .y = y.mutable_data_ptr()});
  return y;
}

at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& dsum, const at::Tensor& sum,
                             const at::Tensor& rstd, const at::Tensor& weight, at::Tensor& dweight, bool accumulate) {
  require_one_device({dy, dsum, sum, rstd, weight, dweight}, "rms_norm_backward");
  const at::Tensor input = dense(sum, 2, "rms_norm sum");
  const at::ScalarType type = input.scalar_type(), accumulator = accumulator_type(type);
  const at::Tensor gradient = dense_like(dy, input.sizes(), type, "rms_norm dy");
  const at::Tensor scale = dense_like(weight, {input.size(1)}, type, "rms_norm weight");
  const at::Tensor statistics = dense_like(rstd, {input.size(0)}, accumulator, "rms_norm rstd");
  at::Tensor other;
  if (dsum.defined()) other = dense_like(dsum, input.sizes(), type, "rms_norm dsum");
  require_writable(dweight, {input.size(1)}, accumulator, "rms_norm dweight");
  at::Tensor dx = make(input.sizes(), type, input.device());
  if (is_dry(input)) {
    report(memory_work("norm backward", bytes_of({gradient, other, input, dx})));
    return dx;
  }
  RmsNormBackward arguments{.dy = gradient.const_data_ptr(),
                            .dsum = other.defined() ? other.const_data_ptr() : nullptr,
                            .sum = input.const_data_ptr(),
                            .rstd = statistics.const_data_ptr(),
                            .weight = scale.const_data_ptr(),
                            .dx = dx.mutable_data_ptr(),
                            .dweight = dweight.mutable_data_ptr()};
  const RmsNormShape shape = shape_of(input);
  if (on_cuda(input)) {
    at::Tensor scratch = make({cuda::rms_norm_backward_scratch(shape)}, accumulator, input.device());
    cuda::rms_norm_backward(shape, arguments, {.scratch = scratch.mutable_data_ptr(), .accumulate = accumulate},
                            stream_of(input));
    return dx;
  }
  at::Tensor alone = accumulate ? make({input.size(1)}, accumulator) : dweight;
  arguments.dweight = alone.mutable_data_ptr();
  cpu::rms_norm_backward(shape, arguments);
  if (accumulate) add_to(dweight, alone);
  return dx;
}

}  // namespace tessera::ops
