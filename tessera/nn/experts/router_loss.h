// The two losses of routers, which docs/numerics.md defines. The auxiliary loss balances the load of the experts. The z
// loss keeps the logits small.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tessera/nn/experts/experts.h"
#include "tessera/nn/experts/moe_aux.h"

namespace tessera::nn {

struct RouterLossOptions {
  double aux_coefficient = 0, z_coefficient = 0;
  MoeAux aux = MoeAux::layer;
  std::int64_t experts_per_token = 1;
};

// Number of elements of RouterLoss::values that precede the counts.
inline constexpr std::int64_t kRouterSums = 3;

struct RouterLoss {
  at::Tensor objective;  // a scalar on the CPU, from which backward starts; scaled as nn::Loss::objective
  // An fp64 tensor on the model's device. The first two values are the auxiliary loss and the z loss, each multiplied
  // by its coefficient and by the number of counted tokens of the microbatch. The third value is the number of choices
  // beyond the capacity of experts, over all layers. The other values are RouterTerms::counts of each layer.
  at::Tensor values;
};
// terms: the terms of the sparse layers, in order. counted: [tokens] bool, as in experts_forward. scale: 1 / number of
// tokens of the whole step.
RouterLoss router_loss(const std::vector<RouterTerms>& terms, const RouterLossOptions& options,
                       const at::Tensor& counted, double scale);

}  // namespace tessera::nn
