#include "tessera/nn/layers/head_norms.h"

namespace tessera::nn {
namespace {

// The call of the operator. The weights are consumed while this object lives.
struct Consumed {
  ConsumedWeight q, k;
  ops::HeadNormRope call;

  Consumed(const PassState& pass, const NormedAttention& a)
      : q(pass, a.norms.q.weight),
        k(pass, a.norms.k.weight),
        call{.qkv = a.qkv,
             .positions = a.positions,
             .heads = head_sizes(a.heads),
             .q = {.weight = q.tensor(), .eps = a.norms.q.eps},
             .k = {.weight = k.tensor(), .eps = a.norms.k.eps},
             .rope = a.rope} {}
};

// The operator computes both gradients at once. A program lends the staging of one gradient at a time.
void produce_sum(const PassState& pass, const Weight& weight, const at::Tensor& sum) {
  produce_gradient(pass, weight, [&](at::Tensor& gradient, bool accumulate) {
    if (accumulate)
      gradient.add_(sum);
    else
      gradient.copy_(sum);
  });
}

}  // namespace

ops::NormedHeads head_norms_forward(const PassState& pass, const NormedAttention& call) {
  return ops::head_norm_rope_forward(Consumed(pass, call).call);
}

ops::Qkv recompute_head_norms(const PassState& pass, const NormedAttention& call, const at::Tensor& rstd) {
  return ops::head_norm_rope_apply(Consumed(pass.in(schedule::Pass::recompute), call).call, rstd);
}

at::Tensor head_norms_backward(const PassState& pass, const NormedAttention& call, const at::Tensor& rstd,
                               const ops::Qkv& gradient) {
  const Consumed weights(pass, call);
  const ops::HeadNormGradients result = ops::head_norm_rope_backward(weights.call, rstd, gradient);
  produce_sum(pass, call.norms.q.weight, result.q_weight);
  produce_sum(pass, call.norms.k.weight, result.k_weight);
  return result.qkv;
}

}  // namespace tessera::nn
