// An update rule that is not part of the library: SGD with momentum, whose state is one bf16 plane.
#pragma once
#include <memory>

#include "tessera/ops/optimizer/update_rule.h"

namespace tessera::train::testing {

//   m = momentum * m + g      stored rounded to bf16
//   w = w * (1 - lr * decay) - lr * m
// Runs on the CPU and, on the current stream, on a GPU.
std::shared_ptr<const ops::UpdateRule> momentum_sgd(double momentum = 0.9, double weight_decay = 0.1);

}  // namespace tessera::train::testing
