#include "tessera/nn/parallel/summed_parts.h"

#include <ATen/ops/empty.h>

#include "tessera/nn/autograd.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/tensor.h"

namespace tessera::nn {
namespace {

class SumFunction : public torch::autograd::Function<SumFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, at::TensorList parts, const PassState* pass) {
    save_parts(ctx, parts);
    const at::Tensor& first = parts[0];
    at::Tensor sum = at::empty(first.sizes(), first.options());
    if (ops::is_dry(first)) ops::report(ops::memory_work("sum of parts", ops::bytes_of(parts) + ops::bytes_of(sum)));
    std::vector<const void*> pointers;
    for (const at::Tensor& part : parts) pointers.push_back(part.const_data_ptr());
    pass->context.program.add_in_order(sum.mutable_data_ptr(), pointers, ops::to_dtype(first.scalar_type()),
                                       first.numel());
    return sum;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    return gradients_with_parts(ctx, gradients[0], {{}});
  }
};

}  // namespace

at::Tensor sum_of(const PassState& pass, const SummedParts& matrix) {
  const at::TensorList parts = matrix.parts();
  return parts.size() == 1 ? parts[0] : SumFunction::apply(parts, &pass);
}

}  // namespace tessera::nn
