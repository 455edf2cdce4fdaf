#include "tessera/nn/layers/linear.h"

#include <ATen/ops/ones.h>

#include "tessera/nn/parallel/parallel_products.h"
#include "tessera/nn/stash.h"
#include "tessera/ops/gemm/gemm.h"

namespace tessera::nn {
namespace {

void add_bias(const PassState& pass, const Weight& bias, at::Tensor& y) {
  ConsumedWeight weight(pass, bias);
  y.add_(weight.tensor());
}

// dy: [tokens, local out].
void produce_bias(const PassState& pass, const Weight& bias, const at::Tensor& dy) {
  produce_gradient(pass, bias, [&](at::Tensor& gradient, bool accumulate) {
    at::Tensor column = gradient.view({bias.cols, 1});
    ops::gemm_wgrad(dy, at::ones({dy.size(0), 1}, dy.options()), column, accumulate);
  });
}

class ColumnFunction : public torch::autograd::Function<ColumnFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, at::TensorList x, const std::optional<at::Tensor>& residual,
                               const PassState* pass, const ColumnLinear* linear, std::int64_t tokens, bool kept) {
    ctx->set_materialize_grads(false);
    save_parts(ctx, x);
    ColumnForward column = column_forward(*pass, *linear, x, residual.value_or(at::Tensor()), tokens, kept);
    if (linear->bias) add_bias(*pass, *linear->bias, column.result.y);
    ctx->save_for_backward(column.saved);
    stash(ctx, *pass, kept, column.items, Tokens::own);
    ctx->saved_data["residual"] = residual.has_value();
    ctx->saved_data["tokens"] = tokens;
    save_pass(ctx, *pass);
    save_pointer(ctx, "linear", linear);
    // Without a norm there is only one result, because autograd accepts no undefined tensors.
    if (!linear->norm) return {column.result.y};
    return {column.result.y, column.result.sum};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const PassState pass = saved_pass(ctx);
    auto& linear = *saved_pointer<const ColumnLinear>(ctx, "linear");
    fetch(ctx, pass);
    if (linear.bias) produce_bias(pass, *linear.bias, gradients[0]);
    const Factor dy = factor_of_columns(pass, linear.weight, OperandKind::gradient, gradients[0], ops::Sides::both);
    const at::Tensor dsum = linear.norm ? gradients[1] : at::Tensor();
    const ops::RmsNormGradients dx =
        column_backward(pass, linear, {dy, dsum}, saved, ctx->saved_data["tokens"].toInt());
    const at::Tensor dresidual = ctx->saved_data["residual"].toBool() ? dx.residual : at::Tensor();
    return gradients_with_parts(ctx, dx.x, {dresidual, {}, {}, {}, {}});
  }
};

class RowFunction : public torch::autograd::Function<RowFunction> {
 public:
  // Returns the parts of the sum.
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const PassState* pass,
                               const RowLinear* linear, bool kept) {
    const Weight& weight = linear->weight;
    const ops::Sides sides = kept && keeps_columns(*pass, weight, Tokens::all) ? ops::Sides::kept : ops::Sides::rows;
    const Factor input = factor_of_columns(*pass, weight, OperandKind::input, x, sides);
    const SummedParts y = scattered_product(*pass, weight, OperandKind::input, input);
    const KeptColumns columns = kept_columns(input);
    ctx->save_for_backward({x, columns.data, columns.scales, columns.amax});
    stash(ctx, *pass, kept, with_columns({x}, input), Tokens::all);
    save_pass(ctx, *pass);
    save_pointer(ctx, "linear", linear);
    return y.parts().vec();
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const PassState pass = saved_pass(ctx);
    const Weight& weight = saved_pointer<const RowLinear>(ctx, "linear")->weight;
    const at::Tensor& x = saved[0];
    fetch(ctx, pass);
    const auto [dx, dy] =
        gathered_product(pass, weight, OperandKind::gradient, gradients[0], x.size(0), ops::Sides::both);
    wgrad(pass, weight, dy,
          saved[1].defined() ? factor_of_kept(pass.context, weight, {saved[1], saved[2], saved[3]}, x.size(0))
                             : factor_of_columns(pass, weight, OperandKind::input, x, ops::Sides::columns));
    return {dx, {}, {}, {}};
  }
};

// Indices of the tensors that column_forward saves.
enum Saved : std::uint8_t { kInput, kSum, kRstd, kData, kScales, kAmax };

// Starts the gather of the other ranks' tokens. The returned function waits for the gather and returns the input.
std::function<Factor()> start_input_of(const PassState& pass, const ColumnLinear& linear,
                                       const std::vector<at::Tensor>& saved, std::int64_t tokens) {
  if (saved[kData].defined())
    return [&, tokens] {
      return factor_of_kept(pass.context, linear.weight, {saved[kData], saved[kScales], saved[kAmax]}, tokens);
    };
  const at::Tensor own =
      saved[kInput].defined() ? saved[kInput] : recompute_norm(pass, *linear.norm, saved[kSum], saved[kRstd]);
  return start_factor_of_tokens(pass, linear.weight, OperandKind::input, own, tokens, ops::Sides::columns);
}

}  // namespace

SummedParts input_of(const PassState& pass, const ColumnLinear& linear, const SummedParts& x) {
  return linear.norm ? x : sum_of(pass, x);
}

ColumnForward column_forward(const PassState& pass, const ColumnLinear& linear, at::TensorList x,
                             const at::Tensor& residual, std::int64_t tokens, bool kept) {
  ops::RmsNorm normed{.y = x[0]};
  if (linear.norm) normed = norm_forward(pass, *linear.norm, x, residual);
  const bool keep_columns = kept && keeps_columns(pass, linear.weight, Tokens::own);
  const bool keep_input = !keep_columns && (!linear.norm || pass.policy != Recompute::selective);
  const auto [y, input] = gathered_product(pass, linear.weight, OperandKind::input, normed.y, tokens,
                                           keep_columns ? ops::Sides::kept : ops::Sides::rows);
  ColumnForward column{.result = {y, normed.sum}, .saved = {}};
  column.saved = {keep_input ? normed.y : at::Tensor(), normed.sum, normed.rstd};
  column.items = with_columns(column.saved, input);
  const KeptColumns columns = kept_columns(input);
  column.saved.insert(column.saved.end(), {columns.data, columns.scales, columns.amax});
  return column;
}

ops::RmsNormGradients column_backward(const PassState& pass, const ColumnLinear& linear,
                                      const ColumnGradients& gradients, const std::vector<at::Tensor>& saved,
                                      std::int64_t tokens) {
  const SummedParts dx = linear_backward(pass, linear.weight, gradients.y, start_input_of(pass, linear, saved, tokens));
  if (!linear.norm) return {.residual = {}, .x = sum_of(pass, dx)};
  return norm_backward(pass, *linear.norm, dx.parts(), gradients.sum, saved[kSum], saved[kRstd]);
}

SummedParts linear_backward(const PassState& pass, const Weight& weight, const Factor& gradient,
                            const std::function<Factor()>& input) {
  PendingTensor dx = start_scattered_product(pass, weight, OperandKind::gradient, gradient);
  wgrad(pass, weight, gradient, input());
  return dx.take_parts();
}

NormedLinear column_linear(const PassState& pass, const ColumnLinear& linear, const SummedParts& x,
                           const at::Tensor& residual, std::int64_t tokens) {
  const SummedParts input = input_of(pass, linear, x);
  const variable_list outputs =
      ColumnFunction::apply(input.parts(), optional_of(residual), &pass, &linear, tokens, is_kept(input.parts()[0]));
  return {outputs[0], linear.norm ? outputs[1] : at::Tensor()};
}

SummedParts row_linear(const PassState& pass, const RowLinear& linear, const at::Tensor& x) {
  return SummedParts(RowFunction::apply(x, &pass, &linear, is_kept(x)));
}

}  // namespace tessera::nn
