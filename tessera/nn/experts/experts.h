// The feed-forward part of a sparse block: y = combine(experts(norm(x + residual))). The router chooses k experts for
// each token. If the layer has a shared expert, the output of the shared expert is added for every token.
//
//   router    logits = norm(x + residual) w^T in the accumulator type; k experts and weights of each own token
//   dispatch  exchanges tokens and choices between the ranks of the group (expert_group.h)
//   experts   rows of the local experts: down(silu(gate) * up * weight)
//   combine   for each token the sum over its experts
//
// The routed experts are one autograd function, and the shared expert is a second one. Backward gathers the tokens
// again. With Recompute::selective, the routed experts keep neither the norm's output nor the output of SwiGLU for
// backward. The shared expert always keeps the norm's output.
#pragma once
#include <ATen/core/Tensor.h>

#include <optional>

#include "tessera/nn/layers/feed_forward.h"
#include "tessera/nn/layers/norm.h"
#include "tessera/nn/weight.h"
#include "tessera/ops/router/router.h"
#include "tessera/ops/router/selection.h"

namespace tessera::nn {

struct Experts {
  Norm norm;
  Weight router;                                     // [experts, hidden], accumulator type
  std::optional<Weight> router_bias = std::nullopt;  // vector [experts], accumulator type, frozen; used by ops::route
  Weight gate_up;                                    // [local experts * 2 f, hidden]
  Weight down;                                       // [local experts * hidden, f]
  ops::RouterOptions options;
  ops::LocalExperts local;
  double capacity = 0;                               // factor of ops::capacity_of; 0: the capacity is unlimited
  std::optional<FeedForward> shared = std::nullopt;  // the shared expert; it has no norm of its own
};

// The sums of a router over the counted tokens of a reader's microbatch, in the accumulator type. The sums are equal on
// all tp ranks. In a recomputed forward, the sums are only over this rank's own tokens.
struct RouterTerms {
  at::Tensor probabilities;      // [experts]; has a gradient
  at::Tensor logsumexp_squares;  // [1]; has a gradient
  at::Tensor counts;             // [experts]: the number of tokens that chose each expert; exact up to 2^24
  at::Tensor dropped;            // [1]: number of choices beyond the capacity, masked tokens included
  bool defined() const { return probabilities.defined(); }
};

struct ExpertsOutput {
  at::Tensor y;    // [own tokens, hidden]
  at::Tensor sum;  // x + residual
  RouterTerms terms;
};
// x, residual: [own tokens, hidden]; residual may be undefined. counted: [tokens] bool, true for tokens whose targets
// are not masked. tokens: number of tokens in the whole microbatch.
ExpertsOutput experts_forward(const PassState& pass, const Experts& layers, const SummedParts& x,
                              const at::Tensor& residual, const at::Tensor& counted, std::int64_t tokens);

}  // namespace tessera::nn
