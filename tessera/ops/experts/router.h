// The router of a layer with experts: each token chooses k of the experts and weighs them (Shazeer et al. 2017). All
// values are in the accumulator type: fp32, or fp64 in fp64 runs. The bits of a token's choice do not depend
// on other tokens.
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/ops/experts/router_types.h"

namespace tessera::ops {

// x: [tokens, hidden] in the model's type. w: [experts, hidden]. Returns x w^T: [tokens, experts].
at::Tensor router_logits(const at::Tensor& x, const at::Tensor& w);
// dlogits: [tokens, experts]. Returns dlogits w: [tokens, hidden].
at::Tensor router_dgrad(const at::Tensor& dlogits, const at::Tensor& w);
// dw [experts, hidden] = dlogits^T x, with the tokens added in order; with `accumulate`, added to dw.
void router_wgrad(const at::Tensor& dlogits, const at::Tensor& x, at::Tensor& dw, bool accumulate);

// bias: [experts] or undefined. The rank of an expert is its score, plus its bias. Weights contain no bias.
//
// A token with a score that is NaN chooses k distinct experts and has weights that are NaN. Throws Error for k outside
// [1, experts of the chosen groups], or for groups that do not divide the experts. Throws InputError on a GPU for
// options other than softmax over all experts, and for a bias.
Routing route(const at::Tensor& logits, const RouterOptions& options, const at::Tensor& bias = {});

// counted: [tokens] bool. Adds in token order, in chunks of 256 tokens.
RouterSums router_sums(const Routing& routing, const at::Tensor& counted);

// Returns the gradient of the logits: [tokens, experts].
at::Tensor route_backward(const Routing& routing, const RouterOptions& options, const RoutingGradients& gradients,
                          const at::Tensor& counted);

}  // namespace tessera::ops
