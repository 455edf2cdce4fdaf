#include "tessera/nn/grouped_scales.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

#include "tessera/nn/collectives.h"
#include "tessera/nn/nvfp4_recipe.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/gemm/operand.h"
#include "tessera/shard/formats/stack_part.h"

namespace tessera::nn {
namespace {

// Returns the position in the step's global batch of the selection's first token. The readers of a compute group read
// adjacent microbatches, in the order of their ranks. The tp ranks of a reader begin with tp rank 0.
std::int64_t first_token_of(const PassState& pass, const shard::ComputeGroup& group, const ops::Selection& selection) {
  const auto own = group.first_ranks.begin() + group.rank + 1;
  const std::int64_t readers = std::ranges::count(group.first_ranks, 0),
                     before = std::count(group.first_ranks.begin(), own, 0) - 1;
  return pass.random.first_token - before * (selection.group_tokens / readers);
}

}  // namespace

StackCut cut_of(const Context& context, const Weight& weight) {
  const shard::ParameterSpec& spec = context.program.parameters().spec(weight.id);
  StackCut cut;
  for (const layout::LocalLayout& part : spec.compute.ranks) {
    if (part.size == 0) continue;
    const shard::StackPart own = shard::stack_part(part, spec.dims[1]);
    cut.cols |= own.cols < spec.dims[2];
    cut.rows |= own.rows != own.matrices * spec.dims[1];
  }
  return cut;
}

at::Tensor greatest_of_parts(const PassState& pass, const Weight& weight, const ops::Selection& selection,
                             const at::Tensor& amaxes, const AmaxReduction& how) {
  const shard::ParameterSpec& spec = pass.context.program.parameters().spec(weight.id);
  at::Tensor all = at::zeros({spec.dims[0] * how.each}, amaxes.options());
  at::Tensor own = all.narrow(0, selection.first * how.each, selection.local * how.each);
  own.copy_(amaxes);
  const std::int64_t count = all.numel();
  runtime::Issued issued = pass.context.program.issue({.kind = runtime::ProgramCollectiveKind::all_reduce_max,
                                                       .out = all.mutable_data_ptr(),
                                                       .counts = {&count, 1},
                                                       .type = quant::DType::fp32,
                                                       .pass = pass.id,
                                                       .domain = spec.domain,
                                                       .is_recorded = how.is_event});
  PendingTensor(pass.context.program, std::move(issued), {}, all).take();
  return own;
}

ops::StackFactor stack_of(const PassState& pass, const Weight& weight, const ConsumedWeight& consumed, ops::Sides side,
                          const ops::Selection& selection) {
  const quant::StackKernels& kernels = pass.context.program.parameters().spec(weight.id).kernels;
  const quant::ProductKernel kernel = side == ops::Sides::rows ? kernels.fprop : kernels.dgrad;
  if (const auto stored = consumed.stored_stack(selection.local, side, kernel)) return *stored;
  const quant::Encoding encoding =
      side == ops::Sides::rows ? quant::weight_encoding(weight.product) : quant::columnwise_encoding(weight.product);
  ops::WholeScale scale;
  if (ops::needs_whole(encoding)) {
    at::Tensor amaxes = ops::amaxes_of_stack(consumed.tensor(), selection.local);
    const StackCut cut = cut_of(pass.context, weight);
    if (cut.rows || cut.cols) amaxes = greatest_of_parts(pass, weight, selection, amaxes, {});
    scale = ops::grouped_scales(encoding, amaxes);
  }
  if (kernel == quant::ProductKernel::native)
    return code_stack(consumed.tensor(), selection.local, encoding, scale, side);
  return decode_stack(consumed.tensor(), selection.local, encoding, scale);
}

ops::RowQuantization row_quantization(const PassState& pass, const Weight& weight, OperandKind kind,
                                      const at::Tensor& rows, const ops::Selection& selection,
                                      ops::RowMatrices matrices) {
  ops::RowQuantization result{
      .encoding = encoding_of(pass.context, weight, kind),
      .amax = place_of_amax(pass, weight, kind),
      .transform = matrices == ops::RowMatrices::experts && transforms_wgrad(pass.context, weight)};
  const StackCut cut = cut_of(pass.context, weight);
  const bool is_cut = kind == OperandKind::input ? cut.cols : cut.rows;
  if (kind == OperandKind::gradient) {
    const shard::ComputeGroup& group =
        pass.context.program.compute_group(pass.context.program.parameters().spec(weight.id).domain);
    // The first axis of the group divides matrices, and the others divide the stack.
    result.rounding = stack_rounding(pass, weight,
                                     {.matrix = static_cast<std::uint32_t>(selection.first),
                                      .part = static_cast<std::uint32_t>(is_cut ? group.axes.front().index : 0),
                                      .first_token = first_token_of(pass, group, selection)});
  }
  if (!ops::needs_whole(result.encoding)) return result;
  if (const auto known = known_scale(pass, weight, kind)) {
    result.whole = *known;
    return result;
  }
  at::Tensor amaxes = ops::amaxes_of_rows(rows, selection, matrices, result.transform);
  if (is_cut)
    amaxes = greatest_of_parts(pass, weight, selection, amaxes,
                               {.each = matrices == ops::RowMatrices::blocks ? selection.blocks : 1,
                                .is_event = !is_delayed(pass.context, weight, kind)});
  result.whole = ops::grouped_scales(result.encoding, amaxes);
  return result;
}

}  // namespace tessera::nn
