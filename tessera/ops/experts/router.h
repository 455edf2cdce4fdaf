// The router of a layer with experts. Each token chooses k experts and gets a weight for each of them (Shazeer et al.
// 2017). All values are in the accumulator type: fp32, or fp64 in fp64 runs. The bits of a token's choice do not depend
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

// The function that computes a token's scores from its logits. The sigmoid of an expert depends only on the logit of
// this expert, as in DeepSeek-V3.
enum class RouterScore : std::uint8_t { softmax, sigmoid };

// The rule by which a router chooses experts. The struct has no pointers, so that a kernel can take it as an argument.
struct RouterOptions {
  std::int64_t k = 1;  // number of experts that a token chooses; at most the number of experts in the chosen groups
  bool normalizes = false;  // whether each token's weights are divided by their sum (for sigmoid: by sum + 1e-20)
  RouterScore score = RouterScore::softmax;
  // The experts form `groups` groups of consecutive experts. All groups have the same size, and at least two experts if
  // there are several groups. The value of a group is the sum of its two largest ranks (route). A token chooses experts
  // only from the `chosen_groups` groups with the largest values.
  std::int64_t groups = 1, chosen_groups = 1;
  double scale = 1;  // factor of the weights, applied after the division

  bool is_softmax_of_all() const { return score == RouterScore::softmax && groups == 1 && scale == 1; }
};

struct Routing {
  at::Tensor probabilities;  // [tokens, experts]: the scores
  at::Tensor logsumexp;      // [tokens]; zeros for sigmoid scores
  at::Tensor experts;        // [tokens, k] int32: chosen experts, by descending rank, then by ascending index
  // [tokens, k]: scores of the chosen experts, divided by their sum if RouterOptions::normalizes, times the scale.
  at::Tensor weights;
};
// Chooses k experts for each token. `bias` is [experts] or undefined. The rank of an expert is its score plus its bias.
// The weights are computed from scores without the bias.
//
// If a score of a token is NaN, the token chooses k distinct experts, and its weights are NaN. Throws Error if k is
// outside [1, number of experts in the chosen groups], or if the groups do not divide the experts evenly. On a GPU,
// throws InputError for options other than softmax over all experts, and for a bias.
Routing route(const at::Tensor& logits, const RouterOptions& options, const at::Tensor& bias = {});

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
