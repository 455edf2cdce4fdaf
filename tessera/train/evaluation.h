// Runs the forward passes of an evaluation, for a trainer or for a frozen model.
#pragma once
#include <functional>

#include "tessera/runtime/runtime.h"
#include "tessera/train/loss_sum.h"
#include "tessera/train/step_input.h"

namespace tessera::train {

// Called between two batches of an evaluation, with the share of the evaluation that is enqueued, above 0 and below 1.
// Every rank calls it the same number of times. If it returns false, which it must do on every rank, the evaluation
// ends without a result. On a device, at most two batches are in flight.
using BetweenBatches = std::function<bool(double share)>;

// Runs the forward pass of every microbatch, in batches (evaluation steps) and without dropout, and sums the losses in
// `losses`. The sum is complete when the function returns. Returns false, without a sum, if `between` returned false;
// an empty `between` is not called. The caller must have made compute's stream current and must have disabled
// gradients. Collective over the world.
bool sum_losses(runtime::Runtime& runtime, const nn::Context& context, models::Model& model, const StepInput& input,
                LossSum& losses, const BetweenBatches& between = {});

}  // namespace tessera::train
