#include "tessera/nn/grouped_linear.h"

#include <ATen/core/ivalue.h>

#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/nn/grouped_scales.h"
#include "tessera/nn/stash.h"
#include "tessera/ops/grouped/grouped.h"

namespace tessera::nn {
namespace {

// Counts the operations of a product. Each rank counts the products of its own tokens with the whole matrices of their
// experts, so the sum over ranks does not depend on the mesh.
void count(const PassState& pass, const Weight& weight, const GroupedRows& rows,
           quant::ProductKernel quant::StackKernels::*product) {
  const shard::ParameterSpec& spec = pass.context.program.parameters().spec(weight.id);
  TESSERA_CHECK(spec.dims.size() == 3, "parameter '{}' has {} dims, expected 3 dims: a stack of matrices", spec.name,
                spec.dims.size());
  const bool is_gpu = pass.context.program.device().kind == base::DeviceKind::cuda;
  const bool is_native =
      weight.product == quant::Format::bf16 || (is_gpu && spec.kernels.*product == quant::ProductKernel::native);
  pass.context.program.count_product(weight.product,
                                     is_native ? quant::ProductKernel::native : quant::ProductKernel::decoded,
                                     2 * rows.own_rows * spec.dims[1] * spec.dims[2]);
  const std::int64_t local = rows.selection.local;
  if (!is_gpu || local == 0) return;
  if (ops::pads_operands(pass.context.program.parameters().types(weight.id).model, weight.rows / local, weight.cols))
    pass.context.program.count_padded_product();
}

// The rows of grouped_linear. Autograd keeps the object until backward.
struct KeptRows : torch::CustomClassHolder {
  explicit KeptRows(GroupedRows of_layer) : rows(std::move(of_layer)) {}
  const GroupedRows rows;
};

class GroupedLinearFunction : public torch::autograd::Function<GroupedLinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const PassState* pass, const Weight* weight,
                            const GroupedRows* rows, bool kept) {
    ctx->save_for_backward({x});
    stash(ctx, *pass, kept, items_of({x}), Tokens::all);
    save_pass(ctx, *pass);
    save_pointer(ctx, "weight", weight);
    ctx->saved_data["rows"] = c10::IValue::make_capsule(c10::make_intrusive<KeptRows>(*rows));
    return grouped_fprop(*pass, *weight, x, *rows);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const PassState pass = saved_pass(ctx);
    const auto& weight = *saved_pointer<const Weight>(ctx, "weight");
    const auto kept = c10::static_intrusive_pointer_cast<KeptRows>(ctx->saved_data["rows"].toCapsule());
    fetch(ctx, pass);
    at::Tensor dx = grouped_dgrad(pass, weight, gradients[0], kept->rows);
    grouped_wgrad(pass, weight, gradients[0], ctx->get_saved_variables()[0], kept->rows);
    return {std::move(dx), {}, {}, {}, {}};
  }
};

// Returns the number of rows of this rank's own tokens. The compute ranks of the weight's domain share the tokens.
std::int64_t own_rows_of(const Context& context, const Weight& weight, const ops::Selection& selection) {
  const int domain = context.program.parameters().spec(weight.id).domain;
  const auto own =
      layout::even_part(selection.group_tokens, context.program.group_rank(domain), context.program.group_size(domain));
  return own.size() * selection.k;
}

}  // namespace

at::Tensor grouped_fprop(const PassState& pass, const Weight& weight, const at::Tensor& x, const GroupedRows& rows) {
  count(pass, weight, rows, &quant::StackKernels::fprop);
  const ops::Selection& selection = rows.selection;
  if (weight.product == quant::Format::bf16) {
    ConsumedWeight consumed(pass, weight);
    return ops::grouped_fprop(x, consumed.tensor(), selection);
  }
  const ops::RowQuantization as =
      row_quantization(pass, weight, OperandKind::input, x, selection, ops::RowMatrices::blocks);
  ConsumedWeight consumed(pass, weight);
  return grouped_fprop(x, as, stack_of(pass, weight, consumed, ops::Sides::rows, selection), selection);
}

at::Tensor grouped_dgrad(const PassState& pass, const Weight& weight, const at::Tensor& dy, const GroupedRows& rows) {
  count(pass, weight, rows, &quant::StackKernels::dgrad);
  const ops::Selection& selection = rows.selection;
  if (weight.product == quant::Format::bf16) {
    ConsumedWeight consumed(pass, weight);
    return ops::grouped_dgrad(dy, consumed.tensor(), selection);
  }
  const ops::RowQuantization as =
      row_quantization(pass, weight, OperandKind::gradient, dy, selection, ops::RowMatrices::blocks);
  ConsumedWeight consumed(pass, weight);
  return grouped_dgrad(dy, as, stack_of(pass, weight, consumed, ops::Sides::columns, selection), selection);
}

void grouped_wgrad(const PassState& pass, const Weight& weight, const at::Tensor& dy, const at::Tensor& x,
                   const GroupedRows& rows) {
  if (!is_trainable(pass.context, weight)) return;
  const ops::Selection& selection = rows.selection;
  const auto quantization = [&](OperandKind kind, const at::Tensor& matrix) {
    if (weight.product == quant::Format::bf16) return ops::RowQuantization();
    return row_quantization(pass, weight, kind, matrix, selection, ops::RowMatrices::experts);
  };
  const quant::ProductKernel kernel = pass.context.program.parameters().spec(weight.id).kernels.wgrad;
  // The amaxes are reduced before the gradient's buffer is taken, because the program expects the produce event next.
  const ops::RowQuantization of_dy = quantization(OperandKind::gradient, dy),
                             of_x = quantization(OperandKind::input, x);
  produce_gradient(pass, weight, [&](at::Tensor& result, bool accumulate) {
    count(pass, weight, rows, &quant::StackKernels::wgrad);
    if (weight.product == quant::Format::bf16)
      ops::grouped_wgrad(dy, x, selection, result, accumulate);
    else
      grouped_wgrad({.rows = dy, .as = of_dy}, {.rows = x, .as = of_x}, selection, result, accumulate, kernel);
  });
}

at::Tensor grouped_linear(const PassState& pass, const GroupedLinear& layer, const at::Tensor& rows,
                          const ops::Selection& selection) {
  const GroupedRows all{.selection = selection, .own_rows = own_rows_of(pass.context, layer.weight, selection)};
  return GroupedLinearFunction::apply(rows, &pass, &layer.weight, &all, is_kept(rows));
}

}  // namespace tessera::nn
