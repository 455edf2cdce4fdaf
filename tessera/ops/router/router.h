// The router of a layer with experts. Each token chooses k experts and gets a weight for each of them (Shazeer et al.
// 2017). All values are in the accumulator type: fp32, or fp64 in fp64 runs. The bits of a token's choice do not depend
// on other tokens.
#pragma once
#include <ATen/core/Tensor.h>

#include "tessera/ops/router/router_types.h"

namespace tessera::ops {

// x: [tokens, hidden] in the model's type. w: [experts, hidden]. Returns x w^T: [tokens, experts].
at::Tensor router_logits(const at::Tensor& x, const at::Tensor& w);
// dlogits: [tokens, experts]. Returns dlogits w: [tokens, hidden].
at::Tensor router_dgrad(const at::Tensor& dlogits, const at::Tensor& w);
// Computes dw [experts, hidden] = dlogits^T x. Adds the tokens of each chunk of kRouterGradientChunk (512) tokens in
// order, and then the chunks in order. If `accumulate` is true, adds the result to the existing dw.
void router_wgrad(const at::Tensor& dlogits, const at::Tensor& x, at::Tensor& dw, bool accumulate);

// Chooses k experts for each token. `bias` is [experts] or undefined. The rank of an expert is its score plus its bias.
// The weights are computed from scores without the bias.
//
// If a score of a token is NaN, the token chooses k distinct experts, and its weights are NaN. Throws Error if k is
// outside [1, number of experts in the chosen groups], or if the groups do not divide the experts evenly.
Routing route(const at::Tensor& logits, const RouterOptions& options, const at::Tensor& bias = {});

// counted: [tokens] bool. Adds in token order, in chunks of 256 tokens.
RouterSums router_sums(const Routing& routing, const at::Tensor& counted);

// Returns the gradient of the logits: [tokens, experts].
at::Tensor route_backward(const Routing& routing, const RouterOptions& options, const RoutingGradients& gradients,
                          const at::Tensor& counted);

}  // namespace tessera::ops
