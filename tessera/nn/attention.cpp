#include "tessera/nn/attention.h"

#include <cmath>
#include <memory>

#include "tessera/nn/stash.h"

namespace tessera::nn {
namespace {

// All that backward needs besides tensors, kept alive by the graph.
struct AttentionCall : torch::CustomClassHolder {
  ops::AttentionShape shape;
  ops::RopeTable rope;
};

class AttentionFunction : public torch::autograd::Function<AttentionFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const AttentionHeads* heads,
                            const at::Tensor& positions, const c10::intrusive_ptr<AttentionCall>& call,
                            Context* context, bool kept) {
    const ops::Qkv split =
        ops::split_rope_forward(qkv, positions, call->rope, heads->q_heads, heads->kv_heads, heads->head_dim);
    const ops::Attention result = ops::attention_forward(split, call->shape);
    variable_list saved{split.q, split.k, split.v, result.out, positions};
    saved.insert(saved.end(), result.softmax.begin(), result.softmax.end());
    ctx->save_for_backward(saved);
    variable_list own{split.q, split.k, split.v};
    own.insert(own.end(), result.softmax.begin(), result.softmax.end());
    stash(ctx, *context, kept, own, Tokens::all);
    save_pointer(ctx, "context", context);
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    return result.out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    fetch(ctx, *saved_pointer<Context>(ctx, "context"));
    const auto call = c10::static_intrusive_pointer_cast<AttentionCall>(ctx->saved_data["call"].toCapsule());
    const ops::Qkv split{saved[0], saved[1], saved[2]};
    const ops::Attention result{saved[3], {saved.begin() + 5, saved.end()}};
    const ops::Qkv gradient = ops::attention_backward(gradients[0].contiguous(), split, result, call->shape);
    return {ops::split_rope_backward(gradient, saved[4], call->rope), {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor attention(Context& context, const at::Tensor& qkv, const AttentionHeads& heads, const TokenLayout& tokens,
                     const ops::RopeTable& rope) {
  auto call = c10::make_intrusive<AttentionCall>();
  call->rope = rope;
  call->shape = {.batch = tokens.batch,
                 .seq_len = tokens.seq_len,
                 .kv_of_q = heads.kv_of_q,
                 .cu_seqlens = tokens.cu_seqlens,
                 .scale = 1.0 / std::sqrt(static_cast<double>(heads.head_dim))};
  return AttentionFunction::apply(qkv, &heads, tokens.positions, call, &context, is_kept(qkv));
}

}  // namespace tessera::nn
