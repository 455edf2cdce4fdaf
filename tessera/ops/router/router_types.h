// The results and the gradients of a router (router.h). All values are in the accumulator type.
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/ops/router/router_options.h"

namespace tessera::ops {

// The choices of all tokens.
struct Routing {
  at::Tensor probabilities;  // [tokens, experts]: the scores
  at::Tensor logsumexp;      // [tokens]; zeros for sigmoid scores
  at::Tensor experts;        // [tokens, k] int32: chosen experts, by descending rank, then by ascending index
  // [tokens, k]: scores of the chosen experts, divided by their sum if RouterOptions::normalizes, times the scale.
  at::Tensor weights;
};

// Sums over the counted tokens. The losses of the router are computed from these sums.
struct RouterSums {
  at::Tensor counts;             // [experts] int64: how often each expert was chosen
  at::Tensor probabilities;      // [experts]
  at::Tensor logsumexp_squares;  // [1]
};

// The gradients of a router's results. Undefined tensors are zero.
struct RoutingGradients {
  at::Tensor weights;            // [tokens, k]
  at::Tensor probabilities;      // [experts]: gradient of RouterSums::probabilities
  at::Tensor logsumexp_squares;  // [1]: gradient of RouterSums::logsumexp_squares
};

}  // namespace tessera::ops
