#include "tessera/nn/collectives.h"

#include <ATen/ops/empty.h>

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

namespace {

// Starts a collective between the parts of the tokens and all tokens. `in` and `out` are contiguous; one of them has
// all `tokens`.
PendingTensor start_with_tokens(const PassState& pass, runtime::ProgramCollectiveKind kind, const at::Tensor& in,
                                const at::Tensor& out, std::int64_t tokens) {
  const std::vector<std::int64_t> counts = token_counts(pass.context, tokens, in.size(1));
  runtime::Issued issued = pass.context.program.issue({.kind = kind,
                                                       .in = in.const_data_ptr(),
                                                       .out = out.mutable_data_ptr(),
                                                       .counts = counts,
                                                       .type = ops::to_dtype(in.scalar_type()),
                                                       .pass = pass.id});
  return {pass.context.program, std::move(issued), in, out};
}

}  // namespace

PendingTensor start_enter_tp(const PassState& pass, const at::Tensor& x, std::int64_t tokens,
                             const TokenReader& reader) {
  if (!pass.context.has_tp() || !pass.context.sequence_parallel) return PendingTensor(x);
  if (travels_in_pieces(pass.context)) return PendingTensor(std::make_unique<GatherInPieces>(pass, x, tokens, reader));
  const at::Tensor whole = at::empty({tokens, x.size(1)}, x.options());
  return start_with_tokens(pass, runtime::ProgramCollectiveKind::all_gather, x.contiguous(), whole, tokens);
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
  return start_with_tokens(pass, runtime::ProgramCollectiveKind::reduce_scatter, whole, own, tokens);
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
