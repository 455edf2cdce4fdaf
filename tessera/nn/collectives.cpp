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

// The program's group, after what compute has enqueued.
comm::Communicator& tp_group(Context& context) {
  shard::Parallel& parallel = context.runtime.parallel();
  if (parallel.is_asynchronous()) parallel.program->lane().wait(parallel.compute->record());
  return *parallel.program;
}

void wait(Context& context, const base::Fence& fence) {
  context.runtime.wait(fence);
}

std::int64_t bytes_of(const at::Tensor& x) {
  return x.numel() * static_cast<std::int64_t>(x.element_size());
}

}  // namespace

at::Tensor enter_tp(Context& context, const at::Tensor& x, std::int64_t tokens, schedule::Pass pass) {
  if (context.tp_size() == 1 || !context.sequence_parallel) return x;
  const at::Tensor own = x.contiguous();
  at::Tensor whole = at::empty({tokens, x.size(1)}, x.options());
  context.runtime.comm(context.runtime.parallel().program_name, "all_gather", bytes_of(own), pass);
  // Bytes are codes of fp8 numbers.
  context.runtime.count_activations(x.scalar_type() == at::kByte ? quant::Format::fp8 : quant::Format::bf16,
                                    bytes_of(whole) - bytes_of(own));
  wait(context, tp_group(context).all_gather(own.data_ptr(), whole.data_ptr(), token_counts(context, tokens, x.size(1)),
                                             ops::to_dtype(x.scalar_type())));
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
  context.runtime.comm(context.runtime.parallel().program_name, "reduce_scatter", bytes_of(whole), pass);
  context.runtime.count_activations(quant::Format::bf16, (context.tp_size() - 1) * bytes_of(own));
  wait(context, tp_group(context).reduce_scatter(whole.data_ptr(), own.data_ptr(), token_counts(context, tokens, width),
                                                 ops::to_dtype(part.scalar_type())));
  return own;
}

void all_reduce_tp(Context& context, at::Tensor& x, comm::ReduceOp op, schedule::Pass pass) {
  if (context.tp_size() == 1) return;
  context.runtime.comm(context.runtime.parallel().program_name,
                       op == comm::ReduceOp::sum ? "all_reduce sum" : "all_reduce max", bytes_of(x), pass);
  context.runtime.count_activations(quant::Format::bf16, 2 * (context.tp_size() - 1) * bytes_of(x) / context.tp_size());
  reduce_unrecorded(context, x, op);
}

void reduce_unrecorded(Context& context, at::Tensor& x, comm::ReduceOp op) {
  if (context.tp_size() == 1) return;
  wait(context, tp_group(context).all_reduce(x.data_ptr(), x.numel(), ops::to_dtype(x.scalar_type()), op));
}

}  // namespace tessera::nn
