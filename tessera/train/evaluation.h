// Runs the forward passes of an evaluation, for a trainer or for a frozen model.
#pragma once
#include "tessera/runtime/runtime.h"
#include "tessera/train/loss_sum.h"
#include "tessera/train/step_input.h"

namespace tessera::train {

// Runs the forward pass of every microbatch, in evaluation steps and without dropout, and sums the losses in `losses`.
// The sum is complete when the function returns. The caller must have made compute's stream current and must have
// disabled gradients. Collective over the world.
void sum_losses(runtime::Runtime& runtime, const nn::Context& context, models::Model& model, const StepInput& input,
                LossSum& losses);

}  // namespace tessera::train
