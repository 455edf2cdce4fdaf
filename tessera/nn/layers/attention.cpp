#include "tessera/nn/layers/attention.h"

#include <cmath>
#include <memory>

#include "tessera/nn/layers/head_norms.h"
#include "tessera/nn/stash.h"
#include "tessera/ops/attention/cached_attention.h"

namespace tessera::nn {
namespace {

// The arguments of the backward pass that are not tensors. The autograd graph keeps this object alive.
struct AttentionCall : torch::CustomClassHolder {
  const AttentionHeads* heads = nullptr;
  const HeadNorms* norms = nullptr;  // null: no head norms
  ops::AttentionShape shape;
  ops::RopeTable rope;
};

// Indices of the saved tensors: the inputs of attention, and the inputs of the norms' backward. A tensor that is not
// kept is undefined.
enum AttentionSaved : std::uint8_t { kQ, kK, kV, kOut, kPositions, kQRows, kKRows, kQRstd, kKRstd, kSoftmax };

ops::Qkv split_and_rotate(const AttentionCall& call, const at::Tensor& qkv, const at::Tensor& positions) {
  const AttentionHeads& heads = *call.heads;
  return ops::split_rope_forward(qkv, positions, call.rope, heads.q_heads, heads.kv_heads, heads.head_dim);
}

class AttentionFunction : public torch::autograd::Function<AttentionFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const at::Tensor& positions,
                            const c10::intrusive_ptr<AttentionCall>& call, const PassState* pass, bool kept) {
    const bool normed = call->norms != nullptr;
    NormedQkv norms{.qkv = qkv, .statistics = {}};
    if (normed) norms = head_norms_forward(*pass, *call->norms, *call->heads, qkv);
    const ops::Qkv rotated = split_and_rotate(*call, norms.qkv, positions);
    const ops::Attention result = ops::attention_forward(rotated, call->shape);
    const bool recomputed = normed && pass->policy == Recompute::selective;
    const HeadStatistics& statistics = norms.statistics;
    variable_list saved{recomputed ? at::Tensor() : rotated.q,
                        recomputed ? at::Tensor() : rotated.k,
                        rotated.v,
                        result.out,
                        positions,
                        statistics.q,
                        statistics.k,
                        statistics.q_rstd,
                        statistics.k_rstd};
    saved.insert(saved.end(), result.softmax.begin(), result.softmax.end());
    ctx->save_for_backward(saved);
    variable_list own = saved;
    own[kOut] = own[kPositions] = at::Tensor();
    stash(ctx, *pass, kept, items_of(own), Tokens::all);
    save_pass(ctx, *pass);
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    return result.out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const PassState pass = saved_pass(ctx);
    fetch(ctx, pass);
    const auto call = c10::static_intrusive_pointer_cast<AttentionCall>(ctx->saved_data["call"].toCapsule());
    const HeadStatistics statistics{
        .q = saved[kQRows], .k = saved[kKRows], .q_rstd = saved[kQRstd], .k_rstd = saved[kKRstd]};
    ops::Qkv rotated{saved[kQ], saved[kK], saved[kV]};
    if (!rotated.q.defined())
      rotated = split_and_rotate(*call, recompute_head_norms(pass, *call->norms, *call->heads, statistics, rotated.v),
                                 saved[kPositions]);
    const ops::Attention result{saved[kOut], {saved.begin() + kSoftmax, saved.end()}};
    const ops::Qkv gradient = ops::attention_backward(gradients[0].contiguous(), rotated, result, call->shape);
    at::Tensor dqkv = ops::split_rope_backward(gradient, saved[kPositions], call->rope);
    if (call->norms != nullptr) dqkv = head_norms_backward(pass, *call->norms, *call->heads, statistics, dqkv);
    return {dqkv, {}, {}, {}, {}};
  }
};

double scale_of(const AttentionHeads& heads) {
  return 1.0 / std::sqrt(static_cast<double>(heads.head_dim));
}

}  // namespace

at::Tensor attention(const PassState& pass, const at::Tensor& qkv, const AttentionHeads& heads,
                     const std::optional<HeadNorms>& norms, const TokenLayout& tokens, const ops::RopeTable& rope) {
  auto call = c10::make_intrusive<AttentionCall>();
  call->heads = &heads;
  call->norms = norms ? &*norms : nullptr;
  call->rope = rope;
  call->shape = {.batch = tokens.batch,
                 .seq_len = tokens.seq_len,
                 .kv_of_q = heads.kv_of_q,
                 .cu_seqlens = tokens.cu_seqlens,
                 .scale = scale_of(heads)};
  return AttentionFunction::apply(qkv, tokens.positions, call, &pass, is_kept(qkv));
}

at::Tensor cached_attention(const PassState& pass, const at::Tensor& qkv, const AttentionHeads& heads,
                            const std::optional<HeadNorms>& norms, const TokenLayout& tokens,
                            const ops::RopeTable& rope, const CachePlace& place) {
  const at::Tensor normed = norms ? head_norms_forward(pass, *norms, heads, qkv).qkv : qkv;
  const ops::Qkv rotated =
      ops::split_rope_forward(normed, tokens.positions, rope, heads.q_heads, heads.kv_heads, heads.head_dim);
  const auto store = [&](const at::Tensor& cache, const at::Tensor& values) {
    cache.narrow(0, place.first, tokens.seq_len).copy_(values);
  };
  store(place.layer.keys, rotated.k);
  store(place.layer.values, rotated.v);
  return ops::cached_attention(rotated.q, {.keys = place.layer.keys,
                                           .values = place.layer.values,
                                           .first = place.first,
                                           .kv_of_q = heads.kv_of_q,
                                           .scale = scale_of(heads)});
}

}  // namespace tessera::nn
