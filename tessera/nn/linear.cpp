#include "tessera/nn/linear.h"

#include "tessera/nn/collectives.h"
#include "tessera/nn/linear_products.h"
#include "tessera/nn/stash.h"
#include "tessera/ops/swiglu.h"

namespace tessera::nn {
namespace {

class ColumnFunction : public torch::autograd::Function<ColumnFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const std::optional<at::Tensor>& residual,
                               Context* context, const ColumnLinear* linear, std::int64_t tokens, bool kept) {
    ctx->set_materialize_grads(false);
    ops::RmsNorm normed{.y = x};
    if (linear->norm) normed = norm_forward(*context, *linear->norm, x, residual.value_or(at::Tensor()));
    const Weight& weight = linear->weight;
    const at::Tensor y =
        fprop(*context, weight,
              factor_of_tokens(*context, weight, Role::input, normed.y, tokens, context->pass, ops::Sides::rows));
    const bool keep_input = !linear->norm || context->policy != Recompute::selective;
    const variable_list saved{keep_input ? normed.y : at::Tensor(), normed.sum, normed.rstd};
    ctx->save_for_backward(saved);
    stash(ctx, *context, kept, saved, Tokens::own);
    ctx->saved_data["residual"] = residual.has_value();
    ctx->saved_data["tokens"] = tokens;
    save_pointer(ctx, "context", context);
    save_pointer(ctx, "linear", linear);
    return {y, normed.sum};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    auto& context = *saved_pointer<Context>(ctx, "context");
    auto& linear = *saved_pointer<const ColumnLinear>(ctx, "linear");
    fetch(ctx, context);
    const std::int64_t tokens = ctx->saved_data["tokens"].toInt();
    at::Tensor input = saved[0];
    if (!input.defined()) input = normed_again(context, *linear.norm, saved[1], saved[2]);
    const at::Tensor part = linear_backward(context, linear.weight, gradients[0], input, tokens);
    at::Tensor dx = leave_tp(context, part, schedule::Pass::backward);
    if (linear.norm) dx = norm_backward(context, *linear.norm, dx, gradients[1], saved[1], saved[2]);
    return {dx, ctx->saved_data["residual"].toBool() ? dx : at::Tensor(), {}, {}, {}, {}};
  }

 private:
  static at::Tensor normed_again(Context& context, const Norm& norm, const at::Tensor& sum, const at::Tensor& rstd) {
    ConsumedWeight weight(context, norm.weight, schedule::Pass::recompute);
    return ops::rms_norm_apply(sum, rstd, weight.tensor());
  }
};

class RowFunction : public torch::autograd::Function<RowFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, Context* context, const RowLinear* linear,
                            bool kept) {
    const bool activated = linear->activation == Activation::swiglu;
    const at::Tensor input = activated ? ops::swiglu_forward(x) : x;
    const Weight& weight = linear->weight;
    const Factor factor = factor_of_columns(*context, weight, Role::input, input, context->pass, ops::Sides::rows);
    at::Tensor y = leave_tp(*context, fprop(*context, weight, factor), context->pass);
    const bool keep_input = activated && context->policy != Recompute::selective;
    const variable_list saved{x, keep_input ? input : at::Tensor()};
    ctx->save_for_backward(saved);
    stash(ctx, *context, kept, saved, Tokens::all);
    save_pointer(ctx, "context", context);
    save_pointer(ctx, "linear", linear);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    auto& context = *saved_pointer<Context>(ctx, "context");
    auto& linear = *saved_pointer<const RowLinear>(ctx, "linear");
    fetch(ctx, context);
    const bool activated = linear.activation == Activation::swiglu;
    const Factor dy = factor_of_tokens(context, linear.weight, Role::gradient, gradients[0], saved[0].size(0),
                                       schedule::Pass::backward, ops::Sides::both);
    const at::Tensor dx = dgrad(context, linear.weight, dy);
    const auto produce = [&](const at::Tensor& input) {
      wgrad(
          context, linear.weight, dy,
          factor_of_columns(context, linear.weight, Role::input, input, schedule::Pass::backward, ops::Sides::columns));
    };
    if (activated && !saved[1].defined()) {
      const ops::SwigluAgain swiglu = ops::swiglu_backward_again(dx, saved[0]);
      produce(swiglu.out);
      return {swiglu.gradient, {}, {}, {}};
    }
    produce(activated ? saved[1] : saved[0]);
    return {activated ? ops::swiglu_backward(dx, saved[0]) : dx, {}, {}, {}};
  }
};

}  // namespace

at::Tensor linear_backward(Context& context, const Weight& weight, const at::Tensor& dy, const at::Tensor& input,
                           std::int64_t tokens) {
  constexpr auto kPass = schedule::Pass::backward;
  const Factor x = factor_of_tokens(context, weight, Role::input, input, tokens, kPass, ops::Sides::columns);
  const Factor gradient = factor_of_columns(context, weight, Role::gradient, dy, kPass, ops::Sides::both);
  at::Tensor dx = dgrad(context, weight, gradient);
  wgrad(context, weight, gradient, x);
  return dx;
}

NormedLinear column_linear(Context& context, const ColumnLinear& linear, const at::Tensor& x,
                           const at::Tensor& residual, std::int64_t tokens) {
  const variable_list outputs = ColumnFunction::apply(x, optional_of(residual), &context, &linear, tokens, is_kept(x));
  return {outputs[0], outputs[1]};
}

at::Tensor row_linear(Context& context, const RowLinear& linear, const at::Tensor& x) {
  return RowFunction::apply(x, &context, &linear, is_kept(x));
}

}  // namespace tessera::nn
