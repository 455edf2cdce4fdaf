#include "tessera/nn/collectives.h"

#include <ATen/ops/empty.h>

#include <numeric>

#include "tessera/nn/parallel/token_pieces.h"
#include "tessera/ops/aten_types.h"

namespace tessera::nn {
namespace {

// Returns the number of elements of each tp rank's tokens.
std::vector<std::int64_t> token_counts(const Context& context, std::int64_t tokens, std::int64_t width) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < context.tp_size(); ++rank) counts.push_back(context.tokens_of(rank, tokens) * width);
  return counts;
}

}  // namespace

PendingTensor::~PendingTensor() {
  if (context_ != nullptr) issued_.done.wait_until_done();
}

at::Tensor PendingTensor::take() {
  if (result_) return result_->take();
  if (Context* context = std::exchange(context_, nullptr)) context->program.wait(issued_);
  return out_;
}

SummedParts PendingTensor::take_parts() {
  return result_ ? result_->take_parts() : take();
}

std::vector<std::int64_t> TokenPart::shape(const layout::Range& ranks) const {
  const auto first = counts.begin() + ranks.begin, last = counts.begin() + ranks.end;
  const std::int64_t elements = std::accumulate(first, last, std::int64_t{0});
  if (own.dim() == 1) return {elements};
  return {elements / own.size(1), own.size(1)};
}

TokenPart part_of_rows(const Context& context, const at::Tensor& own, std::int64_t tokens) {
  return {.own = own.contiguous(), .counts = token_counts(context, tokens, own.size(1))};
}

PendingTensor start_gather(Context& context, const TokenPart& part, schedule::Pass pass, const TokenReader& reader) {
  if (travels_in_pieces(context)) return PendingTensor(std::make_unique<GatherInPieces>(context, part, pass, reader));
  const at::Tensor whole = at::empty(part.shape({.begin = 0, .end = context.tp_size()}), part.own.options());
  runtime::Issued issued = context.program.issue({.kind = runtime::ProgramCollectiveKind::all_gather,
                                                  .in = part.own.const_data_ptr(),
                                                  .out = whole.mutable_data_ptr(),
                                                  .counts = part.counts,
                                                  .type = ops::to_dtype(part.own.scalar_type()),
                                                  .format = part.format,
                                                  .pass = pass});
  return {context, std::move(issued), part.own, whole};
}

PendingTensor start_enter_tp(Context& context, const at::Tensor& x, std::int64_t tokens, schedule::Pass pass,
                             const TokenReader& reader) {
  if (!context.has_tp() || !context.sequence_parallel) return PendingTensor(x);
  return start_gather(context, part_of_rows(context, x, tokens), pass, reader);
}

namespace {

PendingTensor start_all_reduce(Context& context, const at::Tensor& x, comm::ReduceOp op, schedule::Pass pass,
                               bool is_recorded) {
  const std::int64_t elements = x.numel();
  const auto kind = op == comm::ReduceOp::sum ? runtime::ProgramCollectiveKind::all_reduce_sum
                                              : runtime::ProgramCollectiveKind::all_reduce_max;
  runtime::Issued issued = context.program.issue({.kind = kind,
                                                  .out = x.mutable_data_ptr(),
                                                  .counts = {&elements, 1},
                                                  .type = ops::to_dtype(x.scalar_type()),
                                                  .pass = pass,
                                                  .is_recorded = is_recorded});
  return {context, std::move(issued), {}, x};
}

}  // namespace

PendingTensor start_leave_tp(Context& context, const at::Tensor& part, schedule::Pass pass,
                             schedule::ParameterId writer) {
  if (!context.has_tp()) return PendingTensor(part);
  const at::Tensor whole = part.contiguous();
  if (!context.sequence_parallel) return start_all_reduce(context, whole, comm::ReduceOp::sum, pass, true);
  if (travels_in_pieces(context)) {
    auto pieces = std::make_unique<ScatterInPieces>(context, whole, pass, writer);
    pieces->written({.begin = 0, .end = context.tp_size()});
    return PendingTensor(std::move(pieces));
  }
  const std::int64_t tokens = part.size(0), width = part.size(1);
  const at::Tensor own = at::empty({context.tokens_of(context.tp_rank(), tokens), width}, part.options());
  const std::vector<std::int64_t> counts = token_counts(context, tokens, width);
  runtime::Issued issued = context.program.issue({.kind = runtime::ProgramCollectiveKind::reduce_scatter,
                                                  .in = whole.const_data_ptr(),
                                                  .out = own.mutable_data_ptr(),
                                                  .counts = counts,
                                                  .type = ops::to_dtype(whole.scalar_type()),
                                                  .pass = pass});
  return {context, std::move(issued), whole, own};
}

at::Tensor enter_tp(Context& context, const at::Tensor& x, std::int64_t tokens, schedule::Pass pass,
                    const TokenReader& reader) {
  return start_enter_tp(context, x, tokens, pass, reader).take();
}

at::Tensor leave_tp(Context& context, const at::Tensor& part, schedule::Pass pass) {
  return start_leave_tp(context, part, pass).take();
}

void all_reduce_tp(Context& context, at::Tensor& x, comm::ReduceOp op, schedule::Pass pass) {
  if (context.has_tp()) start_all_reduce(context, x, op, pass, true).take();
}

void reduce_unrecorded(Context& context, at::Tensor& x, comm::ReduceOp op) {
  if (context.has_tp()) start_all_reduce(context, x, op, schedule::Pass::forward, false).take();
}

}  // namespace tessera::nn
