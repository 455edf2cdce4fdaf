// The losses of routers: the auxiliary loss, which balances the load of the experts, and the z loss, which keeps the
// logits small. docs/numerics.md defines both.
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

// Number of elements of RouterLoss::values before the counts.
inline constexpr std::int64_t kRouterSums = 3;

struct RouterLoss {
  at::Tensor objective;  // a scalar on the CPU, from which backward starts; scaled as nn::Loss::objective
  // fp64 on the model's device: auxiliary loss and z loss, each with its coefficient and times the counted tokens of
  // the microbatch; the choices beyond the capacity of experts, over all layers; then the counts of each layer's
  // experts.
  at::Tensor values;
};
// terms: of the sparse layers in order. counted: [tokens] bool. scale: 1 / tokens of the whole step.
RouterLoss router_loss(const std::vector<RouterTerms>& terms, const RouterLossOptions& options,
                       const at::Tensor& counted, double scale);

}  // namespace tessera::nn
