// Activations entering and leaving the region in which the tp ranks work on the same tokens with different weights.
//
// Outside, with sequence parallelism each rank holds its part of the tokens by the context's split; without it each
// holds all of them, equal. Both calls are each other's backward. At tp 1 they return their argument. They block until
// done.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/nn/context.h"

namespace tessera::nn {

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
