#include "tessera/nn/layers/output_logits.h"

#include <ATen/ops/zeros.h>

#include "tessera/nn/collectives.h"
#include "tessera/nn/layers/linear_products.h"
#include "tessera/ops/aten_types.h"

namespace tessera::nn {

at::Tensor last_logits(const PassState& pass, const VocabOutput& output, const at::Tensor& hidden, std::int64_t tokens,
                       std::int64_t vocab_size) {
  const at::Tensor row = enter_tp(pass, hidden, tokens).narrow(0, tokens - 1, 1);
  const Factor input = factor_of_columns(pass, output.weight, OperandKind::input, row, ops::Sides::rows);
  const at::Tensor part = fprop(pass, output.weight, input);
  // Every id is on one rank, so each sum has one term that is not zero.
  const quant::DType type = quant::accumulator_of(ops::to_dtype(part.scalar_type()));
  at::Tensor all = at::zeros({vocab_size}, part.options().dtype(ops::to_scalar_type(type)));
  for (int i = 0; i < output.part.count; ++i) {
    const ops::IdRanges::Range& range = output.part.ranges[i];
    const std::int64_t size = range.end - range.begin;
    all.narrow(0, range.begin, size).copy_(part.select(0, 0).narrow(0, range.row, size));
  }
  all_reduce_tp(pass, all, comm::ReduceOp::sum);
  return all;
}

}  // namespace tessera::nn
