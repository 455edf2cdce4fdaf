// The update of one bias of a router, for every device. Internal to ops/experts.
#pragma once
#include <cstdint>

#include "tessera/base/host_device.h"
#include "tessera/ops/router/bias_update.h"

namespace tessera::ops {

// all: the sum of the counts of all experts.
template <typename A>
TESSERA_HOST_DEVICE inline A updated_bias(A bias, std::int64_t all, std::int64_t experts, std::int64_t count, A rate) {
  const std::int64_t missing = all - experts * count;
  if (missing > 0) return bias + rate;
  return missing < 0 ? bias - rate : bias;
}

// Throws Error if a part has experts outside [0, rule.experts).
void check_biases(std::span<const RouterBiasPart> parts, const RouterBiasRule& rule);

}  // namespace tessera::ops
