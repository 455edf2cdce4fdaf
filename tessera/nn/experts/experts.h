// The feed-forward part of a sparse block: y = combine(experts(norm(x + residual))), with a router that chooses k of
// the experts for each token. A shared expert, if the layer has one, adds its output for every token.
//
//   router    logits = norm(x + residual) w^T in the accumulator type; k experts and weights of each own token
//   dispatch  tokens and choices of the ranks of the group (expert_group.h)
//   experts   rows of the local experts: down(silu(gate) * up * weight)
//   combine   for each token the sum over its experts
//
// The part is one autograd function; a shared expert is a second one. Backward gathers the tokens again.
// Recompute::selective keeps neither the norm's output nor the output of SwiGLU. A shared expert keeps the norm's
// output in any case.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "tessera/nn/feed_forward.h"
#include "tessera/nn/norm.h"
#include "tessera/nn/weight.h"
#include "tessera/ops/experts/router.h"
#include "tessera/ops/experts/selection.h"

namespace tessera::nn {

struct Experts {
  Norm norm;
  Weight router;                                     // [experts, hidden], accumulator type
  std::optional<Weight> router_bias = std::nullopt;  // vector [experts], accumulator type, frozen: see ops::route
  Weight gate_up;                                    // [local experts * 2 f, hidden]
  Weight down;                                       // [local experts * hidden, f]
  ops::RouterOptions options;
  ops::LocalExperts local;
  double capacity = 0;                               // factor of ops::capacity_of; 0: no capacity
  std::optional<FeedForward> shared = std::nullopt;  // dense; without a norm of its own
};

// The sums of a router over the counted tokens of a reader's microbatch, in the accumulator type. The sums are equal on
// all tp ranks. In a recomputed forward, the sums are only over this rank's own tokens.
struct RouterTerms {
  at::Tensor probabilities;      // [experts]; has a gradient
  at::Tensor logsumexp_squares;  // [1]; has a gradient
  at::Tensor counts;             // [experts]: the number of tokens that chose each expert; exact up to 2^24
  at::Tensor dropped;            // [1]: choices beyond the capacity, of all tokens, also of tokens that do not count
  bool defined() const { return probabilities.defined(); }
};

struct ExpertsOutput {
  at::Tensor y;    // [own tokens, hidden]
  at::Tensor sum;  // x + residual
  RouterTerms terms;
};
// x, residual: [own tokens, hidden]; residual may be undefined. counted: [tokens] bool, true for tokens whose targets
// are not masked. tokens: number of tokens in the whole microbatch.
ExpertsOutput experts_forward(Context& context, const Experts& layers, const at::Tensor& x, const at::Tensor& residual,
                              const at::Tensor& counted, std::int64_t tokens);

}  // namespace tessera::nn
