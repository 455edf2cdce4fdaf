#include "tessera/nn/layers/embedding.h"

#include <ATen/ops/empty.h>

#include "tessera/base/error.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/collectives.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/embedding/embedding.h"

namespace tessera::nn {
namespace {

bool travels_by_rows(const Context& context, const VocabEmbedding& embedding) {
  return context.program.parameters().by_rows(embedding.weight.id);
}

// Returns the tokens as rows of this rank's part of the table. The result points into `ids`.
shard::RowIds row_ids(const VocabEmbedding& embedding, const at::Tensor& ids) {
  TESSERA_CHECK(embedding.part.count <= 1, "embedding: rows travel by index only with one range of ids, got {} ranges",
                embedding.part.count);
  return {.data = static_cast<const std::int64_t*>(ids.const_data_ptr()),
          .count = ids.numel(),
          .first = embedding.part.count == 0 ? 0 : embedding.part.ranges[0].begin};
}

at::Tensor gather_rows(const PassState& pass, const VocabEmbedding& embedding, const at::Tensor& tokens,
                       const at::Tensor& early_tokens) {
  const Weight& weight = embedding.weight;
  const at::Tensor ids = early_tokens.defined() ? early_tokens : tokens.contiguous();
  at::Tensor y =
      at::empty({ids.size(0), weight.cols},
                tokens.options().dtype(ops::to_scalar_type(pass.context.program.parameters().types().model)));
  std::optional<base::Fence> written;
  // The tokens were written before the microbatch started, so there is no fence to wait for.
  if (early_tokens.defined()) written.emplace();
  pass.context.program.gather_rows(weight.id, row_ids(embedding, ids), y.mutable_data_ptr(), pass.id, written);
  return y;
}

// Sums each row's gradients in the same order as embedding_backward does for a gradient of the whole table.
void produce_rows(const PassState& pass, const VocabEmbedding& embedding, const at::Tensor& tokens,
                  const at::Tensor& dy) {
  const Weight& weight = embedding.weight;
  const at::Tensor ids = tokens.contiguous();
  const runtime::RowGradient rows =
      pass.context.program.grad_rows(weight.id, row_ids(embedding, ids), pass.id.microbatch);
  at::Tensor gradient = ops::view_of(rows.data, {ids.size(0), weight.cols}, rows.dtype, ids.device());
  const at::Tensor slots =
      ops::view_of(const_cast<std::int64_t*>(rows.slots), {ids.size(0)}, quant::DType::i64, ids.device());
  ops::embedding_backward(dy, slots, gradient, ops::one_range(0, gradient.size(0)), false);
  pass.context.program.produce(weight.id, pass.id.microbatch);
}

// Releases the table before the collective has finished.
PendingTensor start_whole(const PassState& pass, const VocabEmbedding& embedding, const at::Tensor& tokens) {
  const ConsumedWeight weight(pass, embedding.weight);
  return start_leave_tp(pass, ops::embedding_forward(tokens, weight.tensor(), embedding.part), embedding.weight.id);
}

// `early_tokens` is a pointer because autograd would make a variable of a tensor, even of an undefined tensor.
class EmbeddingFunction : public torch::autograd::Function<EmbeddingFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& /*anchor*/, const at::Tensor& tokens,
                            const at::Tensor* early_tokens, const PassState* pass, const VocabEmbedding* embedding) {
    ctx->save_for_backward({tokens});
    save_pass(ctx, *pass);
    save_pointer(ctx, "embedding", embedding);
    if (travels_by_rows(pass->context, *embedding))
      return leave_tp(*pass, gather_rows(*pass, *embedding, tokens, *early_tokens));
    return start_whole(*pass, *embedding, tokens).take();
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const at::Tensor tokens = ctx->get_saved_variables()[0];
    const PassState pass = saved_pass(ctx);
    auto& embedding = *saved_pointer<const VocabEmbedding>(ctx, "embedding");
    const at::Tensor dy =
        enter_tp(pass, gradients[0], tokens.size(0), {.weight = embedding.weight.id, .is_wgrad = true});
    if (pass.context.program.parameters().row_gradients(embedding.weight.id)) {
      produce_rows(pass, embedding, tokens, dy);
      return {{}, {}, {}, {}, {}};
    }
    produce_gradient(pass, embedding.weight, [&](at::Tensor& gradient, bool accumulate) {
      ops::embedding_backward(dy, tokens, gradient, embedding.part, accumulate);
    });
    return {{}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor embed(const PassState& pass, const VocabEmbedding& embedding, const at::Tensor& tokens,
                 const at::Tensor& early_tokens, const at::Tensor& anchor) {
  return EmbeddingFunction::apply(anchor, tokens, &early_tokens, &pass, &embedding);
}

}  // namespace tessera::nn
