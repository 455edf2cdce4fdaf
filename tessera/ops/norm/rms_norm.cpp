#include "tessera/ops/norm/rms_norm.h"

#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/norm/rms_norm_kernels.h"
#include "tessera/ops/tensor.h"

namespace tessera::ops {
namespace {

RmsNormShape shape_of(const at::Tensor& x) {
  return {.type = to_dtype(x.scalar_type()), .tokens = x.size(0), .hidden = x.size(1)};
}

void check_dropout(const Dropout& dropout, const at::Tensor& x) {
  TESSERA_CHECK(dropout.probability >= 0 && dropout.probability < 1, "rms_norm: dropout {}, expected [0, 1)",
                dropout.probability);
  TESSERA_CHECK(!dropout.drops() || dropout.step != nullptr || is_dry(x), "rms_norm: dropout without a step");
}

// Returns the parts of a matrix, each dense and row-major.
std::vector<at::Tensor> dense_parts(at::TensorList parts, std::string_view what) {
  TESSERA_CHECK(!parts.empty() && parts.size() <= kMaxSummedParts, "{}: got {} parts, expected 1 to {}", what,
                parts.size(), kMaxSummedParts);
  require_one_device(parts, what);
  std::vector<at::Tensor> result{dense(parts[0], 2, what)};
  for (const at::Tensor& part : parts.slice(1))
    result.push_back(dense_like(part, result[0].sizes(), result[0].scalar_type(), what));
  return result;
}

SumOfParts pointers_of(const std::vector<at::Tensor>& parts) {
  SumOfParts sum;
  for (const at::Tensor& part : parts) sum.parts[sum.count++] = part.const_data_ptr();
  return sum;
}

bool writes_sum(const std::vector<at::Tensor>& x, const at::Tensor& residual, const Dropout& dropout) {
  return x.size() > 1 || residual.defined() || dropout.drops();
}

RmsNorm forward_dry(const std::vector<at::Tensor>& x, const at::Tensor& residual, const Dropout& dropout) {
  const at::Tensor& input = x[0];
  const bool writes = writes_sum(x, residual, dropout);
  RmsNorm result{.y = make(input.sizes(), input.scalar_type(), input.device()),
                 .sum = writes ? make(input.sizes(), input.scalar_type(), input.device()) : input,
                 .rstd = make({input.size(0)}, accumulator_type(input.scalar_type()), input.device())};
  const at::Tensor sum = writes ? result.sum : at::Tensor();
  report(memory_work("norm", bytes_of(x) + bytes_of({residual, sum, result.y})));
  return result;
}

// Uses one kernel instead of two.
RmsNorm forward_on_cuda(const std::vector<at::Tensor>& x, const at::Tensor& residual, const at::Tensor& weight,
                        double eps, const Dropout& dropout) {
  const at::Tensor& input = x[0];
  const at::ScalarType type = input.scalar_type();
  const at::Tensor scale = dense_like(weight, {input.size(1)}, type, "rms_norm weight");
  at::Tensor other;
  if (residual.defined()) other = dense_like(residual, input.sizes(), type, "rms_norm residual");
  const bool writes = writes_sum(x, other, dropout);
  RmsNorm result{.y = make(input.sizes(), type, input.device()),
                 .sum = writes ? make(input.sizes(), type, input.device()) : input,
                 .rstd = make({input.size(0)}, accumulator_type(type), input.device())};
  cuda_only<cuda::rms_norm_forward>(shape_of(input),
                                    {.x = pointers_of(x),
                                     .residual = other.defined() ? other.const_data_ptr() : nullptr,
                                     .weight = scale.const_data_ptr(),
                                     .dropout = dropout,
                                     .eps = eps,
                                     .sum = writes ? result.sum.mutable_data_ptr() : nullptr,
                                     .y = result.y.mutable_data_ptr(),
                                     .rstd = result.rstd.mutable_data_ptr()},
                                    stream_of(input));
  return result;
}

}  // namespace

RmsNorm rms_norm_forward(at::TensorList x, const at::Tensor& residual, const at::Tensor& weight, double eps,
                         const Dropout& dropout) {
  const std::vector<at::Tensor> parts = dense_parts(x, "rms_norm x");
  const at::Tensor& input = parts[0];
  require_one_device({input, residual, weight}, "rms_norm_forward");
  check_dropout(dropout, input);
  if (is_dry(input)) return forward_dry(parts, residual, dropout);
  if (on_cuda(input)) return forward_on_cuda(parts, residual, weight, eps, dropout);
  at::Tensor other;
  if (residual.defined()) other = dense_like(residual, input.sizes(), input.scalar_type(), "rms_norm residual");
  RmsNorm result;
  const bool writes = writes_sum(parts, other, dropout);
  result.sum = writes ? make(input.sizes(), input.scalar_type()) : input;
  result.rstd = make({input.size(0)}, accumulator_type(input.scalar_type()));
  cpu::rms_norm_statistics(shape_of(input), {.x = pointers_of(parts),
                                             .residual = other.defined() ? other.const_data_ptr() : nullptr,
                                             .dropout = dropout,
                                             .eps = eps,
                                             .sum = writes ? result.sum.mutable_data_ptr() : nullptr,
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
  run_kernel(memory_work("norm again", bytes_of({input, y})), input, cpu::rms_norm_apply,
             cuda_only<cuda::rms_norm_apply>, shape_of(input),
             {.sum = input.const_data_ptr(),
              .rstd = statistics.const_data_ptr(),
              .weight = scale.const_data_ptr(),
              .y = y.mutable_data_ptr()});
  return y;
}

RmsNormGradients rms_norm_backward(at::TensorList dy, const at::Tensor& dsum, const at::Tensor& sum,
                                   const at::Tensor& rstd, const at::Tensor& weight, at::Tensor& dweight,
                                   bool accumulate, const Dropout& dropout) {
  const std::vector<at::Tensor> gradient = dense_parts(dy, "rms_norm dy");
  require_one_device({gradient[0], dsum, sum, rstd, weight, dweight}, "rms_norm_backward");
  const at::Tensor input = dense(sum, 2, "rms_norm sum");
  const at::ScalarType type = input.scalar_type(), accumulator = accumulator_type(type);
  dense_like(gradient[0], input.sizes(), type, "rms_norm dy");
  const at::Tensor scale = dense_like(weight, {input.size(1)}, type, "rms_norm weight");
  const at::Tensor statistics = dense_like(rstd, {input.size(0)}, accumulator, "rms_norm rstd");
  at::Tensor other;
  if (dsum.defined()) other = dense_like(dsum, input.sizes(), type, "rms_norm dsum");
  require_writable(dweight, {input.size(1)}, accumulator, "rms_norm dweight");
  check_dropout(dropout, input);
  const at::Tensor dx = make(input.sizes(), type, input.device());
  const at::Tensor dinput = dropout.drops() ? make(input.sizes(), type, input.device()) : dx;
  const RmsNormGradients result{.residual = dx, .x = dinput};
  if (is_dry(input)) {
    report(memory_work("norm backward",
                       bytes_of(gradient) + bytes_of({other, input, dx}) + (dropout.drops() ? bytes_of({dinput}) : 0)));
    return result;
  }
  RmsNormBackward arguments{.dy = pointers_of(gradient),
                            .dsum = other.defined() ? other.const_data_ptr() : nullptr,
                            .sum = input.const_data_ptr(),
                            .rstd = statistics.const_data_ptr(),
                            .weight = scale.const_data_ptr(),
                            .dropout = dropout,
                            .dx = dx.mutable_data_ptr(),
                            .dinput = dropout.drops() ? dinput.mutable_data_ptr() : nullptr,
                            .dweight = dweight.mutable_data_ptr()};
  const RmsNormShape shape = shape_of(input);
  if (on_cuda(input)) {
    at::Tensor scratch = make({cuda_only<cuda::rms_norm_backward_scratch>(shape)}, accumulator, input.device());
    cuda_only<cuda::rms_norm_backward>(
        shape, arguments, {.scratch = scratch.mutable_data_ptr(), .accumulate = accumulate}, stream_of(input));
    return result;
  }
  at::Tensor alone = accumulate ? make({input.size(1)}, accumulator) : dweight;
  arguments.dweight = alone.mutable_data_ptr();
  cpu::rms_norm_backward(shape, arguments);
  if (accumulate) add_to(dweight, alone);
  return result;
}

at::Tensor rms_norm_backward(at::TensorList dy, const at::Tensor& dsum, const at::Tensor& sum, const at::Tensor& rstd,
                             const at::Tensor& weight, at::Tensor& dweight, bool accumulate) {
  return rms_norm_backward(dy, dsum, sum, rstd, weight, dweight, accumulate, {}).residual;
}

}  // namespace tessera::ops
