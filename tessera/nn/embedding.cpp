#include "tessera/nn/embedding.h"

#include "tessera/nn/autograd.h"
#include "tessera/nn/collectives.h"
#include "tessera/ops/embedding.h"

namespace tessera::nn {
namespace {

class EmbeddingFunction : public torch::autograd::Function<EmbeddingFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& /*anchor*/, const at::Tensor& tokens,
                            Context* context, const VocabEmbedding* embedding) {
    ctx->save_for_backward({tokens});
    save_pointer(ctx, "context", context);
    save_pointer(ctx, "embedding", embedding);
    ConsumedWeight weight(*context, embedding->weight, context->pass);
    return leave_tp(*context, ops::embedding_forward(tokens, weight.tensor(), embedding->vocab_begin), context->pass);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const at::Tensor tokens = ctx->get_saved_variables()[0];
    auto& context = *saved_pointer<Context>(ctx, "context");
    auto& embedding = *saved_pointer<const VocabEmbedding>(ctx, "embedding");
    const at::Tensor dy = enter_tp(context, gradients[0], tokens.size(0), shard::Pass::backward);
    produce_gradient(context, embedding.weight, [&](at::Tensor& gradient, bool accumulate) {
      ops::embedding_backward(dy, tokens, gradient, embedding.vocab_begin, accumulate);
    });
    return {{}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor embed(Context& context, const VocabEmbedding& embedding, const at::Tensor& tokens,
                 const at::Tensor& anchor) {
  return EmbeddingFunction::apply(anchor, tokens, &context, &embedding);
}

}  // namespace tessera::nn
