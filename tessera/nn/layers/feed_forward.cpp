#include "tessera/nn/layers/feed_forward.h"

#include "tessera/nn/parallel/parallel_products.h"
#include "tessera/nn/stash.h"

namespace tessera::nn {
namespace {

enum Stash : int { kGateUpStash, kDownStash };
// Indices of the tensors kept for backward: gate_up's output, and SwiGLU's output as a matrix or as an operand by
// columns.
enum Kept : std::uint8_t { kGateUp, kActivated, kColumns, kColumnScales, kColumnAmax };

// Returns down(swiglu(gate_up)).
SummedParts activated_forward(AutogradContext* ctx, const PassState& pass, const Weight& down,
                              const at::Tensor& gate_up, bool kept) {
  const ops::Sides sides = kept && keeps_columns(pass, down, Tokens::all) ? ops::Sides::kept : ops::Sides::rows;
  const Factor activated = factor_of_swiglu(pass, down, gate_up, sides);
  SummedParts y = scattered_product(pass, down, OperandKind::input, activated);
  if (!kept) return y;
  variable_list own{gate_up, pass.policy != Recompute::selective ? activated.matrix : at::Tensor()};
  stash(ctx, pass, kept, with_columns(own, activated), Tokens::all);
  const KeptColumns columns = kept_columns(activated);
  own.insert(own.end(), {columns.data, columns.scales, columns.amax});
  // save_for_backward accepts only arguments and results of the function. Backward frees these tensors early.
  ctx->saved_data["kept"] = own;
  return y;
}

// Returns the gradient of gate_up's output.
Factor activated_backward(AutogradContext* ctx, const PassState& pass, const FeedForward& layers, const at::Tensor& dy,
                          std::int64_t tokens) {
  const Weight& down = layers.down.weight;
  const variable_list kept = ctx->saved_data["kept"].toTensorVector();
  ctx->saved_data.erase("kept");
  fetch(ctx, pass, kDownStash);
  const auto [dout, gradient] = gathered_product(pass, down, OperandKind::gradient, dy, tokens, ops::Sides::both);
  const bool recomputes = !kept[kActivated].defined() && !kept[kColumns].defined();
  SwigluFactors swiglu =
      factors_of_swiglu_backward(pass, layers.gate_up.weight, recomputes ? &down : nullptr, dout, kept[kGateUp]);
  if (kept[kColumns].defined())
    swiglu.out = factor_of_kept(pass.context, down, {kept[kColumns], kept[kColumnScales], kept[kColumnAmax]}, tokens);
  else if (!recomputes)
    swiglu.out = factor_of_columns(pass, down, OperandKind::input, kept[kActivated], ops::Sides::columns);
  wgrad(pass, down, gradient, swiglu.out);
  return std::move(swiglu.gradient);
}

class FeedForwardFunction : public torch::autograd::Function<FeedForwardFunction> {
 public:
  // Returns the parts of y, followed by the sum of x and the residual if there is a norm.
  static variable_list forward(AutogradContext* ctx, at::TensorList x, const std::optional<at::Tensor>& residual,
                               const PassState* pass, const FeedForward* layers, std::int64_t tokens, bool kept) {
    ctx->set_materialize_grads(false);
    save_parts(ctx, x);
    const ColumnForward column =
        column_forward(*pass, layers->gate_up, x, residual.value_or(at::Tensor()), tokens, kept);
    ctx->save_for_backward(column.saved);
    stash(ctx, *pass, kept, column.items, Tokens::own);
    ctx->saved_data["residual"] = residual.has_value();
    ctx->saved_data["tokens"] = tokens;
    save_pass(ctx, *pass);
    save_pointer(ctx, "layers", layers);
    variable_list outputs = activated_forward(ctx, *pass, layers->down.weight, column.result.y, kept).parts().vec();
    if (layers->gate_up.norm) outputs.push_back(column.result.sum);  // autograd does not accept an undefined result
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const PassState pass = saved_pass(ctx);
    auto& layers = *saved_pointer<const FeedForward>(ctx, "layers");
    const std::int64_t tokens = ctx->saved_data["tokens"].toInt();
    const Factor gradient = activated_backward(ctx, pass, layers, gradients[0], tokens);
    const variable_list saved = ctx->get_saved_variables();
    fetch(ctx, pass, kGateUpStash);
    const at::Tensor dsum = layers.gate_up.norm ? gradients.back() : at::Tensor();
    const ops::RmsNormGradients dx = column_backward(pass, layers.gate_up, {gradient, dsum}, saved, tokens);
    const at::Tensor dresidual = ctx->saved_data["residual"].toBool() ? dx.residual : at::Tensor();
    return gradients_with_parts(ctx, dx.x, {dresidual, {}, {}, {}, {}});
  }
};

}  // namespace

FeedForwardOutput feed_forward(const PassState& pass, const FeedForward& layers, const SummedParts& x,
                               const at::Tensor& residual, std::int64_t tokens) {
  const SummedParts input = input_of(pass, layers.gate_up, x);
  variable_list outputs = FeedForwardFunction::apply(input.parts(), optional_of(residual), &pass, &layers, tokens,
                                                     is_kept(input.parts()[0]));
  at::Tensor sum;
  if (layers.gate_up.norm) {
    sum = outputs.back();
    outputs.pop_back();
  }
  return {.y = SummedParts(std::move(outputs)), .sum = sum};
}

}  // namespace tessera::nn
