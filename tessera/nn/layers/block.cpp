#include "tessera/nn/layers/block.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

#include "tessera/nn/stash.h"

namespace tessera::nn {
namespace {

// place: null if tokens attend only to tokens of the microbatch.
BlockOutput run_block(const PassState& model, const Block& block, Stream stream, const TokenLayout& tokens,
                      const ops::RopeTable& rope, const CachePlace* place = nullptr) {
  const PassState pass = model.with(block.recompute);
  const std::int64_t count = tokens.batch * tokens.seq_len;
  const NormedLinear qkv = column_linear(pass, block.qkv, stream.h, stream.residual, count);
  stream = {};
  const at::Tensor attended = place == nullptr
                                  ? attention(pass, qkv.y, block.heads, block.head_norms, tokens, rope)
                                  : cached_attention(pass, qkv.y, block.heads, block.head_norms, tokens, rope, *place);
  const SummedParts output = row_linear(pass, block.attention_output, attended);
  if (block.experts) {
    ExpertsOutput out = experts_forward(pass, *block.experts, output, qkv.sum, tokens.counted, count);
    return {{out.y, out.sum}, std::move(out.terms)};
  }
  FeedForwardOutput fed = feed_forward(pass, block.feed_forward, output, qkv.sum, count);
  return {{std::move(fed.y), fed.sum}, {}};
}

struct BlockCall : torch::CustomClassHolder {
  const Block* block = nullptr;
  TokenLayout tokens;
  ops::RopeTable rope;
};

// The outputs of a block as autograd passes them, with the terms of the router if the block has a router.
variable_list outputs_of(const PassState& pass, const BlockOutput& out) {
  variable_list outputs{sum_of(pass, out.stream.h), out.stream.residual};
  if (out.terms.defined())
    outputs.insert(outputs.end(),
                   {out.terms.probabilities, out.terms.logsumexp_squares, out.terms.counts, out.terms.dropped});
  return outputs;
}

at::Tensor leaf_of(const at::Tensor& saved) {
  return saved.defined() ? saved.detach().requires_grad_() : at::Tensor();
}

// A block that keeps only its input. The backward pass runs the forward pass again and differentiates it.
class RecomputedBlock : public torch::autograd::Function<RecomputedBlock> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& h, const std::optional<at::Tensor>& residual,
                               const c10::intrusive_ptr<BlockCall>& call, const PassState* pass, bool kept) {
    ctx->set_materialize_grads(false);
    const BlockOutput out =
        run_block(*pass, *call->block, {h, residual.value_or(at::Tensor())}, call->tokens, call->rope);
    ctx->save_for_backward({h, residual.value_or(at::Tensor())});
    stash(ctx, *pass, kept, items_of({h, residual.value_or(at::Tensor())}), Tokens::own);
    save_pass(ctx, *pass);
    ctx->saved_data["call"] = c10::IValue::make_capsule(call);
    if (out.terms.defined()) ctx->mark_non_differentiable({out.terms.counts, out.terms.dropped});
    return outputs_of(*pass, out);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const variable_list saved = ctx->get_saved_variables();
    const auto call = c10::static_intrusive_pointer_cast<BlockCall>(ctx->saved_data["call"].toCapsule());
    const PassState pass = saved_pass(ctx);
    fetch(ctx, pass);
    variable_list inputs{leaf_of(saved[0])};
    const Stream in{inputs[0], leaf_of(saved[1])};
    variable_list outputs, output_gradients;
    {
      at::AutoGradMode enable(true);
      const PassState repeated = pass.in(schedule::Pass::recompute);
      outputs = outputs_of(repeated, run_block(repeated, *call->block, in, call->tokens, call->rope));
    }
    variable_list used;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!gradients[i].defined() || !outputs[i].requires_grad()) continue;
      used.push_back(outputs[i]);
      output_gradients.push_back(gradients[i]);
    }
    if (in.residual.defined()) inputs.push_back(in.residual);
    variable_list result = torch::autograd::grad(used, inputs, output_gradients);
    result.resize(5);  // `call`, `pass` and `kept` have no gradient
    return result;
  }
};

}  // namespace

BlockOutput block_forward(const PassState& pass, const Block& block, Stream stream, const TokenLayout& tokens,
                          const ops::RopeTable& rope) {
  if (block.recompute != Recompute::full) return run_block(pass, block, std::move(stream), tokens, rope);
  auto call = c10::make_intrusive<BlockCall>();
  call->block = &block;
  call->tokens = tokens;
  call->rope = rope;
  const at::Tensor h = sum_of(pass, stream.h);  // the block keeps the sum
  stream.h = {};
  const variable_list out = RecomputedBlock::apply(h, optional_of(stream.residual), call, &pass, is_kept(h));
  BlockOutput result{{out[0], out[1]}, {}};
  if (block.experts)
    result.terms = {.probabilities = out[2], .logsumexp_squares = out[3], .counts = out[4], .dropped = out[5]};
  return result;
}

Stream cached_block_forward(const PassState& pass, const Block& block, Stream stream, const TokenLayout& tokens,
                            const ops::RopeTable& rope, const CachePlace& place) {
  return run_block(pass, block, std::move(stream), tokens, rope, &place).stream;
}

}  // namespace tessera::nn
