// MFU, the model flops utilization: the share of the hardware's peak that the model's arithmetic reaches.
//
//   mfu = model flops of a step / (step time x ranks x peak flops of a rank's processor)
//
// Model flops are the additions and multiplications of the model's matrix products and of causal attention, forward and
// backward. These are about 6 for each token and each weight of a product, plus attention. Recomputed activations,
// padding and the optimizer do not count. For each token, only the experts that it chooses count. The peak is that of
// dense products in the run's --dtype, even if products have a number format (--gemm-format). Products in fp8 therefore
// raise the mfu.
#pragma once
#include <cstdint>

#include "tessera/predict/dry_step.h"

namespace tessera::predict {

// Returns the model flops of one microbatch on the rank of a dry step.
double microbatch_flops(const DryOptions& options);

// Returns the mfu as defined above. `peak` is in flops per second of one rank's processor.
inline double mfu_of(double flops, double step_seconds, std::int64_t ranks, double peak) {
  return flops / (step_seconds * static_cast<double>(ranks) * peak);
}

}  // namespace tessera::predict
