#include "tessera/nn/layers/norm.h"

#include <ATen/ops/empty.h>

#include "tessera/nn/stash.h"

namespace tessera::nn {
namespace {

class NormFunction : public torch::autograd::Function<NormFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, at::TensorList x, const std::optional<at::Tensor>& residual,
                            const PassState* pass, const Norm* norm, bool kept) {
    save_parts(ctx, x);
    ops::RmsNorm result = norm_forward(*pass, *norm, x, residual.value_or(at::Tensor()));
    ctx->save_for_backward({result.sum, result.rstd});
    stash(ctx, *pass, kept, items_of({result.sum, result.rstd}), Tokens::own);
    ctx->saved_data["residual"] = residual.has_value();
    save_pass(ctx, *pass);
    save_pointer(ctx, "norm", norm);
    return result.y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const PassState pass = saved_pass(ctx);
    auto& norm = *saved_pointer<const Norm>(ctx, "norm");
    fetch(ctx, pass);
    const ops::RmsNormGradients result = norm_backward(pass, norm, gradients[0], {}, saved[0], saved[1]);
    const at::Tensor dresidual = ctx->saved_data["residual"].toBool() ? result.residual : at::Tensor();
    return gradients_with_parts(ctx, result.x, {dresidual, {}, {}, {}});
  }
};

}  // namespace

ops::RmsNorm norm_forward(const PassState& pass, const Norm& norm, at::TensorList x, const at::Tensor& residual) {
  ConsumedWeight weight(pass, norm.weight);
  return ops::rms_norm_forward(x, residual, weight.tensor(), norm.eps, dropout_of(pass.random, norm.dropout));
}

at::Tensor recompute_norm(const PassState& pass, const Norm& norm, const at::Tensor& sum, const at::Tensor& rstd) {
  ConsumedWeight weight(pass.in(schedule::Pass::recompute), norm.weight);
  return ops::rms_norm_apply(sum, rstd, weight.tensor());
}

ops::RmsNormGradients norm_backward(const PassState& pass, const Norm& norm, at::TensorList dy, const at::Tensor& dsum,
                                    const at::Tensor& sum, const at::Tensor& rstd) {
  ConsumedWeight weight(pass, norm.weight);
  const ops::Dropout dropout = dropout_of(pass.random, norm.dropout);
  if (!is_trainable(pass.context, norm.weight)) {
    // The operator always computes the gradient of the weight.
    at::Tensor unused = at::empty({norm.weight.cols}, rstd.options());
    return ops::rms_norm_backward(dy, dsum, sum, rstd, weight.tensor(), unused, false, dropout);
  }
  ops::RmsNormGradients result;
  produce_gradient(pass, norm.weight, [&](at::Tensor& gradient, bool accumulate) {
    result = ops::rms_norm_backward(dy, dsum, sum, rstd, weight.tensor(), gradient, accumulate, dropout);
  });
  return result;
}

at::Tensor rms_norm(const PassState& pass, const Norm& norm, const SummedParts& x, const at::Tensor& residual) {
  return NormFunction::apply(x.parts(), optional_of(residual), &pass, &norm, is_kept(x.parts()[0]));
}

}  // namespace tessera::nn
