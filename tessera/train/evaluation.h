// The forward passes of an evaluation, of a trainer or of a frozen model.
#pragma once
#include "tessera/runtime/runtime.h"
#include "tessera/train/loss_sum.h"
#include "tessera/train/step_input.h"

namespace tessera::train {

// Runs the forward pass of every microbatch, in evaluation steps, and sums the losses into `losses`. The sum is
// complete on return. The caller has made compute's stream current, and has disabled gradients. Collective over the
// world.
void sum_losses(runtime::Runtime& runtime, models::Model& model, const StepInput& input, LossSum& losses);

}  // namespace tessera::train
