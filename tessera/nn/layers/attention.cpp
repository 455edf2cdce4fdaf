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

// Indices of the saved tensors. A tensor that is not kept is undefined: with norms v, which is a view of qkv, and
// without norms qkv and its statistics.
enum AttentionSaved : std::uint8_t { kQ, kK, kV, kOut, kPositions, kQkv, kRstd, kSoftmax };

NormedAttention normed_call(const AttentionCall& call, const at::Tensor& qkv, const at::Tensor& positions) {
  return {.norms = *call.norms, .heads = *call.heads, .rope = call.rope, .qkv = qkv, .positions = positions};
}

class AttentionFunction : public torch::autograd::Function<AttentionFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const at::Tensor& positions,
                            const c10::intrusive_ptr<AttentionCall>& call, const PassState* pass, bool kept) {
    const AttentionHeads& heads = *call->heads;
    const bool normed = call->norms != nullptr;
    ops::NormedHeads result;
    if (normed)
      result = head_norms_forward(*pass, normed_call(*call, qkv, positions));
    else
      result.rotated =
          ops::split_rope_forward(qkv, positions, call->rope, heads.q_heads, heads.kv_heads, heads.head_dim);
    const ops::Qkv& rotated = result.rotated;
    const ops::Attention attention = ops::attention_forward(rotated, call->shape);
    const at::Tensor none;
    const bool recomputed = normed && pass->policy == Recompute::selective;
    variable_list saved{recomputed ? none : rotated.q,
                        recomputed ? none : rotated.k,
                        normed ? none : rotated.v,
                        attention.out,
                        positions,
                        normed ? qkv : none,
                        result.rstd};
    saved.insert(saved.end(), attention.softmax.begin(), attention.softmax.end());
    ctx->save_for_backward(saved);
    variable_list own = saved;
    own[kOut] = own[kPositions] = none;
    stash(ctx, *pass, kept, items_of(own), Tokens::all);
    save_pass(ctx, *pass);
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    return attention.out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const PassState pass = saved_pass(ctx);
    fetch(ctx, pass);
    const auto call = c10::static_intrusive_pointer_cast<AttentionCall>(ctx->saved_data["call"].toCapsule());
    const ops::Attention result{saved[kOut], {saved.begin() + kSoftmax, saved.end()}};
    const at::Tensor dout = gradients[0].contiguous();
    if (call->norms == nullptr) {
      const ops::Qkv gradient = ops::attention_backward(dout, {saved[kQ], saved[kK], saved[kV]}, result, call->shape);
      return {ops::split_rope_backward(gradient, saved[kPositions], call->rope), {}, {}, {}, {}};
    }
    const NormedAttention normed = normed_call(*call, saved[kQkv], saved[kPositions]);
    ops::Qkv rotated{saved[kQ], saved[kK], ops::values_of(saved[kQkv], head_sizes(*call->heads))};
    if (!rotated.q.defined()) rotated = recompute_head_norms(pass, normed, saved[kRstd]);
    const ops::Qkv gradient = ops::attention_backward(dout, rotated, result, call->shape);
    return {head_norms_backward(pass, normed, saved[kRstd], gradient), {}, {}, {}, {}};
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
  const ops::Qkv rotated =
      norms ? head_norms_forward(pass, {*norms, heads, rope, qkv, tokens.positions}).rotated
            : ops::split_rope_forward(qkv, tokens.positions, rope, heads.q_heads, heads.kv_heads, heads.head_dim);
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
