// The router of a layer with experts: each token chooses k of the experts and weighs them (Shazeer et al. 2017). All
// values are in the accumulator type: fp32, or fp64 in fp64 runs. The bits of a token's choice do not depend
// on other tokens.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::ops {

// x: [tokens, hidden] in the model's type. w: [experts, hidden]. Returns x w^T: [tokens, experts].
at::Tensor router_logits(const at::Tensor& x, const at::Tensor& w);
// dlogits: [tokens, experts]. Returns dlogits w: [tokens, hidden].
at::Tensor router_dgrad(const at::Tensor& dlogits, const at::Tensor& w);
// dw [experts, hidden] = dlogits^T x, with the tokens added in order; with `accumulate`, added to dw.
void router_wgrad(const at::Tensor& dlogits, const at::Tensor& x, at::Tensor& dw, bool accumulate);

// The function that makes scores of the logits of a token. sigmoid: of each logit alone, as in DeepSeek-V3.
enum class RouterScore : std::uint8_t { softmax, sigmoid };

// The rule by which a router decides. The struct has no pointers, so a kernel can take it as an argument.
struct RouterOptions {
  std::int64_t k = 1;       // experts of a token; at most the number of experts in the chosen groups
  bool normalizes = false;  // whether the weights of a token are divided by their sum (for sigmoid: by sum + 1e-20)
  RouterScore score = RouterScore::softmax;
  // The experts form `groups` runs of equal length. A token chooses experts only from `chosen_groups` of the runs:
  // those with the largest sums of their two best ranks. With several groups, a group has at least two experts.
  std::int64_t groups = 1, chosen_groups = 1;
  double scale = 1;  // factor of the weights, after the division

  bool is_softmax_of_all() const { return score == RouterScore::softmax && groups == 1 && scale == 1; }
};

struct Routing {
  at::Tensor probabilities;  // [tokens, experts]: the scores
  at::Tensor logsumexp;      // [tokens]; for sigmoid: zeros
  at::Tensor experts;        // [tokens, k] int32: by rank descending, then by index ascending
  at::Tensor weights;        // [tokens, k]: the scores of the chosen experts, normalized or not, times the scale
};
// bias: [experts] or undefined. The rank of an expert is its score, plus its bias. Weights contain no bias.
//
// A token with a score that is NaN chooses k distinct experts and has weights that are NaN. Throws Error for k outside
// [1, experts of the chosen groups], or for groups that do not divide the experts. Throws InputError on a GPU for
// options other than softmax over all experts, and for a bias.
Routing route(const at::Tensor& logits, const RouterOptions& options, const at::Tensor& bias = {});

// Sums over the counted tokens, for the losses of the router.
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
  at::Tensor probabilities;      // [experts]: of RouterSums::probabilities
  at::Tensor logsumexp_squares;  // [1]: gradient of RouterSums::logsumexp_squares
};
// Returns the gradient of the logits: [tokens, experts].
at::Tensor route_backward(const Routing& routing, const RouterOptions& options, const RoutingGradients& gradients,
                          const at::Tensor& counted);

}  // namespace tessera::ops
