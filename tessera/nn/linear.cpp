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
    const bool keep_columns = kept && keeps_columns(*context, weight, Tokens::own);
    const Factor input = factor_of_tokens(*context, weight, Role::input, normed.y, tokens, context->pass,
                                          keep_columns ? ops::Sides::both : ops::Sides::rows);
    const at::Tensor y = fprop(*context, weight, input);
    const bool keep_input = !keep_columns && (!linear->norm || context->policy != Recompute::selective);
    const KeptColumns columns = kept_columns(input);
    const variable_list saved{keep_input ? normed.y : at::Tensor(), normed.sum, normed.rstd};
    ctx->save_for_backward({saved[0], saved[1], saved[2], columns.data, columns.scales});
    stash(ctx, *context, kept, saved, Tokens::own, bytes_of_columns(input));
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
    const auto input = [&] {
      if (saved[3].defined()) return factor_of_kept(context, linear.weight, {saved[3], saved[4]}, tokens);
      const at::Tensor own = saved[0].defined() ? saved[0] : normed_again(context, *linear.norm, saved[1], saved[2]);
      return factor_of_tokens(context, linear.weight, Role::input, own, tokens, schedule::Pass::backward,
                              ops::Sides::columns);
    };
    const at::Tensor part = linear_backward(context, linear.weight, gradients[0], input());
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
    const bool keep_columns = kept && keeps_columns(*context, weight, Tokens::all);
    const Factor factor = factor_of_columns(*context, weight, Role::input, input, context->pass,
                                            keep_columns ? ops::Sides::both : ops::Sides::rows);
    at::Tensor y = leave_tp(*context, fprop(*context, weight, factor), context->pass);
    const bool keep_input = activated && !keep_columns && context->policy != Recompute::selective;
    const KeptColumns columns = kept_columns(factor);
    const variable_list saved{x, keep_input ? input : at::Tensor()};
    ctx->save_for_backward({saved[0], saved[1], columns.data, columns.scales});
    stash(ctx, *context, kept, saved, Tokens::all, bytes_of_columns(factor));
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
    const bool has_columns = saved[2].defined();
    if (activated && !saved[1].defined() && !has_columns) {
      const ops::SwigluAgain swiglu = ops::swiglu_backward_again(dx, saved[0]);
      produce(swiglu.out);
      return {swiglu.gradient, {}, {}, {}};
    }
    if (has_columns)
      wgrad(context, linear.weight, dy, factor_of_kept(context, linear.weight, {saved[2], saved[3]}, saved[0].size(0)));
    else
      produce(activated ? saved[1] : saved[0]);
    return {activated ? ops::swiglu_backward(dx, saved[0]) : dx, {}, {}, {}};
  }
};

}  // namespace

at::Tensor linear_backward(Context& context, const Weight& weight, const at::Tensor& dy, const Factor& input) {
  const Factor gradient =
      factor_of_columns(context, weight, Role::gradient, dy, schedule::Pass::backward, ops::Sides::both);
  at::Tensor dx = dgrad(context, weight, gradient);
  wgrad(context, weight, gradient, input);
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
