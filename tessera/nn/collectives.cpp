#include "tessera/nn/collectives.h"

#include <ATen/ops/empty.h>

#include "tessera/ops/aten_types.h"

namespace tessera::nn {
namespace {

// Elements of each tp rank's tokens.
std::vector<std::int64_t> token_counts(const Context& context, std::int64_t tokens, std::int64_t width) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < context.tp_size(); ++rank) counts.push_back(context.tokens_of(rank, tokens) * width);
  return counts;
}

// Carries it out, and waits.
void complete(Context& context, const runtime::Collective& collective) {
  context.program.wait(context.program.issue(collective));
}

}  // namespace

at::Tensor enter_tp(Context& context, const at::Tensor& x, std::int64_t tokens, schedule::Pass pass) {
  if (context.tp_size() == 1 || !context.sequence_parallel) return x;
  const at::Tensor own = x.contiguous();
  at::Tensor whole = at::empty({tokens, x.size(1)}, x.options());
  const std::vector<std::int64_t> counts = token_counts(context, tokens, x.size(1));
  complete(context, {.kind = runtime::CollectiveKind::all_gather,
                     .in = own.const_data_ptr(),
                     .out = whole.mutable_data_ptr(),
                     .counts = counts,
                     .type = ops::to_dtype(x.scalar_type()),
                     .pass = pass});
  return whole;
}

at::Tensor leave_tp(Context& context, const at::Tensor& part, schedule::Pass pass) {
  if (context.tp_size() == 1) return part;
  at::Tensor whole = part.contiguous();
  if (!context.sequence_parallel) {
    all_reduce_tp(context, whole, comm::ReduceOp::sum, pass);
    return whole;
  }
  const std::int64_t tokens = part.size(0), width = part.size(1);
  at::Tensor own = at::empty({context.tokens_of(context.tp_rank(), tokens), width}, part.options());
  const std::vector<std::int64_t> counts = token_counts(context, tokens, width);
  complete(context, {.kind = runtime::CollectiveKind::reduce_scatter,
                     .in = whole.const_data_ptr(),
                     .out = own.mutable_data_ptr(),
                     .counts = counts,
                     .type = ops::to_dtype(part.scalar_type()),
                     .pass = pass});
  return own;
}

namespace {

void all_reduce(Context& context, at::Tensor& x, comm::ReduceOp op, schedule::Pass pass, bool is_recorded) {
  if (context.tp_size() == 1) return;
  const std::int64_t elements = x.numel();
  complete(context, {.kind = op == comm::ReduceOp::sum ? runtime::CollectiveKind::all_reduce_sum
                                                       : runtime::CollectiveKind::all_reduce_max,
                     .out = x.mutable_data_ptr(),
                     .counts = {&elements, 1},
                     .type = ops::to_dtype(x.scalar_type()),
                     .pass = pass,
                     .is_recorded = is_recorded});
}

}  // namespace

void all_reduce_tp(Context& context, at::Tensor& x, comm::ReduceOp op, schedule::Pass pass) {
  all_reduce(context, x, op, pass, true);
}

void reduce_unrecorded(Context& context, at::Tensor& x, comm::ReduceOp op) {
  all_reduce(context, x, op, schedule::Pass::forward, false);
}

}  // namespace tessera::nn
