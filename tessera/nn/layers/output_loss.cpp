#include "tessera/nn/layers/output_loss.h"

#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>

#include <functional>
#include <limits>

#include "tessera/nn/layers/linear.h"
#include "tessera/nn/parallel/parallel_products.h"
#include "tessera/nn/stash.h"
#include "tessera/ops/cross_entropy/cross_entropy.h"

namespace tessera::nn {
namespace {

class OutputLossFunction : public torch::autograd::Function<OutputLossFunction> {
 public:
  // Writes the sum of the losses to `sum`. If `scale` is 0, no backward pass follows.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& targets,
                            const PassState* pass, const VocabOutput* output, double scale, at::Tensor* sum) {
    at::Tensor logits =
        gathered_product(*pass, output->weight, OperandKind::input, hidden, targets.size(0), ops::Sides::rows).product;
    at::Tensor maximum = ops::cross_entropy_maximum(logits);
    all_reduce_tp(*pass, maximum, comm::ReduceOp::max);
    at::Tensor sums = ops::cross_entropy_sums(logits, maximum, targets, output->part);
    all_reduce_tp(*pass, sums, comm::ReduceOp::sum);
    const at::Tensor losses = ops::cross_entropy_finish(logits, maximum, sums, targets, output->part, scale);
    *sum = ops::sum_on_device(losses);
    ctx->save_for_backward({scale != 0 ? logits : at::Tensor(), hidden});
    stash(ctx, *pass, scale != 0, items_of({logits, hidden}), Tokens::all);
    save_pass(ctx, *pass);
    save_pointer(ctx, "output", output);
    // Reading the value from a GPU would make the host wait.
    const double value = sum->is_cpu() ? scale * sum->item<double>() : std::numeric_limits<double>::quiet_NaN();
    return at::scalar_tensor(value, at::kDouble);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const PassState pass = saved_pass(ctx);
    auto& output = *saved_pointer<const VocabOutput>(ctx, "output");
    fetch(ctx, pass);
    at::Tensor dlogits = saved[0];
    if (const double factor = gradients[0].item<double>(); factor != 1.0) dlogits = at::mul(dlogits, factor);
    const std::function<Factor()> hidden =
        start_factor_of_tokens(pass, output.weight, OperandKind::input, saved[1], dlogits.size(0), ops::Sides::columns);
    const Factor gradient = factor_of_columns(pass, output.weight, OperandKind::gradient, dlogits, ops::Sides::both);
    return {sum_of(pass, linear_backward(pass, output.weight, gradient, hidden)), {}, {}, {}, {}, {}};
  }
};

}  // namespace

Loss output_loss(const PassState& pass, const VocabOutput& output, const at::Tensor& hidden, const at::Tensor& targets,
                 double scale) {
  Loss loss;
  loss.objective = OutputLossFunction::apply(hidden, targets, &pass, &output, is_kept(hidden) ? scale : 0.0, &loss.sum);
  return loss;
}

}  // namespace tessera::nn
