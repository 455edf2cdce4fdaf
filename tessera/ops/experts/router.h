// The router of a layer with experts: each token chooses k of the experts and weighs them (Shazeer et al. 2017). CPU
// only. All values are in the accumulator type: fp32, or fp64 in fp64 runs. The bits of a token's choice do not depend
// on other tokens.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::ops {

// x: [tokens, hidden] in the model's type. w: [experts, hidden]. Returns x w^T: [tokens, experts].
at::Tensor router_logits(const at::Tensor& x, const at::Tensor& w);
// dlogits: [tokens, experts]. Returns dlogits w: [tokens, hidden].
at::Tensor router_dgrad(const at::Tensor& dlogits, const at::Tensor& w);
// Computes dw [experts, hidden] = dlogits^T x. Adds the tokens in order. If `accumulate` is true, adds the result to
// the existing dw.
void router_wgrad(const at::Tensor& dlogits, const at::Tensor& x, at::Tensor& dw, bool accumulate);

struct RouterOptions {
  std::int64_t k = 1;       // experts of a token; at most the number of experts
  bool normalizes = false;  // whether each token's weights are divided by their sum
};

struct Routing {
  at::Tensor probabilities;  // [tokens, experts]: softmax of the logits
  at::Tensor logsumexp;      // [tokens]
  at::Tensor experts;        // [tokens, k] int32: chosen experts, by descending probability, then by ascending index
  // [tokens, k]: probabilities of the chosen experts, divided by their sum if RouterOptions::normalizes.
  at::Tensor weights;
};
// A token whose logits are NaN chooses k distinct experts and has weights that are NaN. Throws Error for k outside
// [1, experts].
Routing route(const at::Tensor& logits, const RouterOptions& options);

// Sums over the counted tokens. The losses of the router are computed from these sums.
struct RouterSums {
  at::Tensor counts;             // [experts] int64: how often each expert was chosen
  at::Tensor probabilities;      // [experts]
  at::Tensor logsumexp_squares;  // [1]
};
// counted: [tokens] bool. Adds in token order, in chunks of 256 tokens.
RouterSums router_sums(const Routing& routing, const at::Tensor& counted);

// The gradients of a router's results. Undefined tensors are zero.
struct RoutingGradients {
  at::Tensor weights;            // [tokens, k]
  at::Tensor probabilities;      // [experts]: gradient of RouterSums::probabilities
  at::Tensor logsumexp_squares;  // [1]: gradient of RouterSums::logsumexp_squares
};
// Returns the gradient of the logits: [tokens, experts].
at::Tensor route_backward(const Routing& routing, const RouterOptions& options, const RoutingGradients& gradients,
                          const at::Tensor& counted);

}  // namespace tessera::ops
