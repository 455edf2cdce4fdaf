// The rule, the results and the gradients of a router (router.h). All values are in the accumulator type.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::ops {

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

// The choices of all tokens.
struct Routing {
  at::Tensor probabilities;  // [tokens, experts]: the scores
  at::Tensor logsumexp;      // [tokens]; for sigmoid: zeros
  at::Tensor experts;        // [tokens, k] int32: by rank descending, then by index ascending
  at::Tensor weights;        // [tokens, k]: the scores of the chosen experts, normalized or not, times the scale
};

// Sums over the counted tokens, for the losses of the router.
struct RouterSums {
  at::Tensor counts;             // [experts] int64: how often each expert was chosen
  at::Tensor probabilities;      // [experts]
  at::Tensor logsumexp_squares;  // [1]
};

// The gradients of a router's results. Undefined tensors are zero.
struct RoutingGradients {
  at::Tensor weights;            // [tokens, k]
  at::Tensor probabilities;      // [experts]: of RouterSums::probabilities
  at::Tensor logsumexp_squares;  // [1]: gradient of RouterSums::logsumexp_squares
};

}  // namespace tessera::ops
