// The state of a training step that determines its random numbers: dropout (ops/dropout.h) and the rounding of
// gradients (quant/formats/stochastic_rounding.h).
#pragma once
#include <cstdint>

namespace tessera::nn {

// The trainer and the model set the state before each microbatch. Backward of a microbatch runs before forward of the
// next microbatch, so both passes of a microbatch use the same state.
struct RandomState {
  std::uint64_t seed = 0;
  // The number of the step, in device memory. Null: nothing is random, as in an evaluation.
  const std::int64_t* step = nullptr;
  // Positions in the step's global batch of the microbatch's first token, and of this rank's first own token in it.
  std::int64_t first_token = 0, first_own_token = 0;
};

}  // namespace tessera::nn
