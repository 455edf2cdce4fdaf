// The rule, the results and the gradients of a router (router.h). All values are in the accumulator type.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::ops {

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
