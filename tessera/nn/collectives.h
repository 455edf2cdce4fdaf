// Activations entering and leaving the region in which the tp ranks work on the same tokens with different weights.
//
// Outside, with sequence parallelism each rank holds its part of the tokens by the context's split; without it each
// holds all of them, equal. Both calls are each other's backward. At tp 1 they return their argument. What compute does
// next comes behind their result, and a CPU's host blocks until then; start_enter_tp and start_leave_tp only begin, so
// that something else is computed meanwhile.
#pragma once
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/nn/context.h"

namespace tessera::nn {

// What a collective brings, on its way. It keeps what the collective reads and writes.
class Arriving {
 public:
  explicit Arriving(at::Tensor known) : out_(std::move(known)) {}  // without a collective
  Arriving(Context& context, runtime::Issued issued, at::Tensor in, at::Tensor out)
      : context_(&context), issued_(std::move(issued)), in_(std::move(in)), out_(std::move(out)) {}
  // Where an error has come before take(): the memory stays until the collective is over, done or failed.
  ~Arriving();
  Arriving(Arriving&& other) noexcept
      : context_(std::exchange(other.context_, nullptr)),
        issued_(std::move(other.issued_)),
        in_(std::move(other.in_)),
        out_(std::move(other.out_)) {}
  Arriving& operator=(Arriving&&) = delete;

  // Waits, and returns the result. Called once.
  at::Tensor take();

 private:
  Context* context_ = nullptr;  // null: nothing to wait for
  runtime::Issued issued_;
  at::Tensor in_, out_;
};
Arriving start_enter_tp(Context& context, const at::Tensor& x, std::int64_t tokens, schedule::Pass pass);
// part is given up: where its memory is dense and tokens are not split, the sum takes its place.
Arriving start_leave_tp(Context& context, const at::Tensor& part, schedule::Pass pass);

// [own tokens, width] -> [tokens, width].
at::Tensor enter_tp(Context& context, const at::Tensor& x, std::int64_t tokens, schedule::Pass pass);
// Every rank's [tokens, width] are parts of a sum; returns this rank's tokens of it: [own tokens, width]. Parts are
// added in tp-rank order in the accumulator type, rounded once.
at::Tensor leave_tp(Context& context, const at::Tensor& part, schedule::Pass pass);
// In place over tp; contiguous.
void all_reduce_tp(Context& context, at::Tensor& x, comm::ReduceOp op, schedule::Pass pass);
// The same without an event: of steps that do once what no schedule foresees.
void reduce_unrecorded(Context& context, at::Tensor& x, comm::ReduceOp op);

}  // namespace tessera::nn
