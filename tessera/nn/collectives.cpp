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
  if (program_ != nullptr) issued_.done.wait_until_done();
}

at::Tensor PendingTensor::take() {
  if (result_) return result_->take();
  if (runtime::Program* program = std::exchange(program_, nullptr)) program->wait(issued_);
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

PendingTensor start_gather(const PassState& pass, const TokenPart& part, const TokenReader& reader) {
  if (travels_in_pieces(pass.context)) return PendingTensor(std::make_unique<GatherInPieces>(pass, part, reader));
  const at::Tensor whole = at::empty(part.shape({.begin = 0, .end = pass.context.tp_size()}), part.own.options());
  runtime::Issued issued = pass.context.program.issue({.kind = runtime::ProgramCollectiveKind::all_gather,
                                                       .in = part.own.const_data_ptr(),
                                                       .out = whole.mutable_data_ptr(),
                                                       .counts = part.counts,
                                                       .type = ops::to_dtype(part.own.scalar_type()),
                                                       .format = part.format,
                                                       .pass = pass.id});
  return {pass.context.program, std::move(issued), part.own, whole};
}

PendingTensor start_enter_tp(const PassState& pass, const at::Tensor& x, std::int64_t tokens,
                             const TokenReader& reader) {
  if (!pass.context.has_tp() || !pass.context.sequence_parallel) return PendingTensor(x);
  return start_gather(pass, part_of_rows(pass.context, x, tokens), reader);
}

namespace {

PendingTensor start_all_reduce(const PassState& pass, const at::Tensor& x, comm::ReduceOp op, bool is_recorded) {
  const std::int64_t elements = x.numel();
  const auto kind = op == comm::ReduceOp::sum ? runtime::ProgramCollectiveKind::all_reduce_sum
                                              : runtime::ProgramCollectiveKind::all_reduce_max;
  runtime::Issued issued = pass.context.program.issue({.kind = kind,
                                                       .out = x.mutable_data_ptr(),
                                                       .counts = {&elements, 1},
                                                       .type = ops::to_dtype(x.scalar_type()),
                                                       .pass = pass.id,
                                                       .is_recorded = is_recorded});
  return {pass.context.program, std::move(issued), {}, x};
}

}  // namespace

PendingTensor start_leave_tp(const PassState& pass, const at::Tensor& part, schedule::ParameterId writer) {
  if (!pass.context.has_tp()) return PendingTensor(part);
  const at::Tensor whole = part.contiguous();
  if (!pass.context.sequence_parallel) return start_all_reduce(pass, whole, comm::ReduceOp::sum, true);
  if (travels_in_pieces(pass.context)) {
    auto pieces = std::make_unique<ScatterInPieces>(pass, whole, writer);
    pieces->written({.begin = 0, .end = pass.context.tp_size()});
    return PendingTensor(std::move(pieces));
  }
  const std::int64_t tokens = part.size(0), width = part.size(1);
  const at::Tensor own = at::empty({pass.context.tokens_of(pass.context.tp_rank(), tokens), width}, part.options());
  const std::vector<std::int64_t> counts = token_counts(pass.context, tokens, width);
  runtime::Issued issued = pass.context.program.issue({.kind = runtime::ProgramCollectiveKind::reduce_scatter,
                                                       .in = whole.const_data_ptr(),
                                                       .out = own.mutable_data_ptr(),
                                                       .counts = counts,
                                                       .type = ops::to_dtype(whole.scalar_type()),
                                                       .pass = pass.id});
  return {pass.context.program, std::move(issued), whole, own};
}

at::Tensor enter_tp(const PassState& pass, const at::Tensor& x, std::int64_t tokens, const TokenReader& reader) {
  return start_enter_tp(pass, x, tokens, reader).take();
}

at::Tensor leave_tp(const PassState& pass, const at::Tensor& part) {
  return start_leave_tp(pass, part).take();
}

void all_reduce_tp(const PassState& pass, at::Tensor& x, comm::ReduceOp op) {
  if (pass.context.has_tp()) start_all_reduce(pass, x, op, true).take();
}

void reduce_unrecorded(const PassState& pass, at::Tensor& x, comm::ReduceOp op) {
  if (pass.context.has_tp()) start_all_reduce(pass, x, op, false).take();
}

}  // namespace tessera::nn
