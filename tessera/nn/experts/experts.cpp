#include "tessera/nn/experts/experts.h"

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "tessera/nn/experts/expert_group.h"
#include "tessera/nn/grouped_linear.h"
#include "tessera/nn/layers/linear_products.h"
#include "tessera/nn/stash.h"
#include "tessera/ops/experts/capacity.h"
#include "tessera/ops/experts/permute.h"
#include "tessera/ops/experts/weighted_swiglu.h"
#include "tessera/ops/router/router_gradient.h"
#include "tessera/ops/tensor.h"

namespace tessera::nn {
namespace {

// Indices of the tensors that save_for_backward holds, and of the others that backward frees early.
enum SavedOfExperts : std::uint8_t { kNormed, kNormedSum, kNormScale };
enum KeptOfExperts : std::uint8_t {
  kProbabilities,
  kLogsumexp,
  kChosen,
  kChosenWeights,
  kCounted,
  kChoices,
  kGateUpRows,
  kActivatedRows
};
enum StashOfExperts : int { kOwnStash, kGroupStash };

// This rank's own part of a tensor over the microbatch's tokens.
at::Tensor own_part(const Context& context, const at::Tensor& all, std::int64_t tokens) {
  const layout::Range part = context.own_tokens(tokens);
  return part.size() == tokens ? all : all.narrow(0, part.begin, part.size());
}

ops::Routing route_tokens(const PassState& pass, const Experts& layers, const at::Tensor& x) {
  at::Tensor logits;
  {
    ConsumedWeight weight(pass, layers.router);
    logits = ops::router_logits(x, weight.tensor());
  }
  if (!layers.router_bias) return ops::route(logits, layers.options);
  ConsumedWeight bias(pass, *layers.router_bias);
  return ops::route(logits, layers.options, bias.tensor());
}

// The choices and weights of tokens as one tensor, [tokens, 2 k]. Numbers of experts are exact in the weights' type.
at::Tensor packed(const ops::Routing& routing) {
  return at::cat({routing.experts.to(routing.weights.scalar_type()), routing.weights}, 1);
}

struct Dispatched : GroupedRows {
  at::Tensor weights;  // index: row
};
// Returns the capacity of an expert for a block with this number of tokens. 0: no limit.
std::int64_t capacity_of_block(const Experts& layers, std::int64_t tokens) {
  if (layers.capacity == 0) return 0;
  return ops::capacity_of(layers.capacity, tokens, layers.options.k, layers.local.all);
}

Dispatched select(const Context& context, const Experts& layers, const ExpertGroup& group, const at::Tensor& choices) {
  const std::int64_t k = layers.options.k, capacity = capacity_of_block(layers, group.tokens() / group.blocks());
  const at::Tensor weights = choices.narrow(1, k, k).contiguous();
  at::Tensor experts = choices.narrow(1, 0, k).to(at::kInt);
  if (capacity > 0) experts = ops::within_capacity(experts, weights, layers.local, group.blocks(), capacity);
  const ops::RowRoom room =
      context.expert_room == nullptr ? ops::RowRoom() : context.expert_room->rows(context.program.is_training());
  Dispatched result;
  result.selection = ops::select_rows(experts, layers.local, group.blocks(), room);
  result.own_rows = group.own() * k;
  result.weights = ops::take_choices(weights, result.selection);
  return result;
}

// Returns the router's sums over the microbatch. A recomputed forward omits the exchange between ranks, because only
// the gradients of its sums are used. `capacity` is the largest number of rows of an expert in this block; 0: no limit.
RouterTerms terms_of(const PassState& pass, const ops::Routing& routing, const at::Tensor& counted,
                     std::int64_t capacity) {
  const ops::RouterSums sums = ops::router_sums(routing, counted);
  const std::int64_t experts = sums.counts.size(0);
  const at::ScalarType type = sums.probabilities.scalar_type();
  variable_list parts{sums.probabilities, sums.logsumexp_squares, sums.counts.to(type)};
  if (capacity > 0) parts.push_back(ops::router_sums(routing, at::ones_like(counted)).counts.to(type));
  at::Tensor all = at::cat(parts, 0);
  if (pass.id.pass == schedule::Pass::forward) all_reduce_tp(pass, all, comm::ReduceOp::sum);
  RouterTerms terms{.probabilities = all.narrow(0, 0, experts).clone(),
                    .logsumexp_squares = all.narrow(0, experts, 1).clone(),
                    .counts = all.narrow(0, experts + 1, experts).clone(),
                    .dropped = at::zeros({1}, all.options())};
  if (capacity > 0)
    terms.dropped = all.narrow(0, 2 * experts + 1, experts).sub(capacity).clamp_min(0).sum(0, /*keepdim=*/true);
  return terms;
}

class ExpertsFunction : public torch::autograd::Function<ExpertsFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, at::TensorList x, const std::optional<at::Tensor>& residual,
                               const at::Tensor& counted, const PassState* pass, const Experts* layers,
                               std::int64_t tokens, bool kept) {
    ctx->set_materialize_grads(false);
    save_parts(ctx, x);
    const ExpertGroup group(*pass, tokens);
    const bool selective = pass->policy == Recompute::selective;
    const ops::RmsNorm normed = norm_forward(*pass, layers->norm, x, residual.value_or(at::Tensor()));
    const ops::Routing routing = route_tokens(*pass, *layers, normed.y);
    PendingTensor arriving = group.start_gather(normed.y);
    const at::Tensor choices = group.start_gather(packed(routing)).take();
    const Dispatched rows = select(pass->context, *layers, group, choices);
    const at::Tensor gate_up =
        grouped_fprop(*pass, layers->gate_up, ops::take_rows(arriving.take(), rows.selection), rows);
    const at::Tensor activated = ops::weighted_swiglu(gate_up, rows.weights, rows.selection);
    const at::Tensor out = grouped_fprop(*pass, layers->down, activated, rows);
    PendingTensor y = group.start_reduce(ops::combine_rows(out, rows.selection));
    const at::Tensor own_counted = own_part(pass->context, counted, tokens);
    RouterTerms terms = terms_of(*pass, routing, own_counted, capacity_of_block(*layers, tokens));

    const bool keeps_normed = !selective || layers->shared;
    const variable_list saved{keeps_normed ? normed.y : at::Tensor(), normed.sum, normed.rstd};
    ctx->save_for_backward(saved);
    const variable_list own{routing.probabilities, routing.logsumexp, routing.experts, routing.weights, own_counted};
    const variable_list of_group{choices, gate_up, selective ? at::Tensor() : activated};
    // The shared expert also reads the norm's output. If the shared expert keeps the output, it stashes the output.
    const bool elsewhere = layers->shared && !keeps_columns(*pass, layers->shared->gate_up.weight, Tokens::own);
    variable_list stashed = own;
    stashed.insert(stashed.end(), {elsewhere ? at::Tensor() : saved[kNormed], normed.sum, normed.rstd});
    stash(ctx, *pass, kept, items_of(stashed), Tokens::own);
    stash(ctx, *pass, kept, items_of(of_group), Tokens::all);
    if (kept) {
      variable_list all = own;
      all.insert(all.end(), of_group.begin(), of_group.end());
      ctx->saved_data["kept"] = all;
    }
    ctx->saved_data["residual"] = residual.has_value();
    ctx->saved_data["tokens"] = tokens;
    save_pass(ctx, *pass);
    save_pointer(ctx, "layers", layers);
    ctx->mark_non_differentiable({terms.counts, terms.dropped});
    return {y.take(), normed.sum, terms.probabilities, terms.logsumexp_squares, terms.counts, terms.dropped, normed.y};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const PassState pass = saved_pass(ctx);
    auto& layers = *saved_pointer<const Experts>(ctx, "layers");
    const variable_list saved = ctx->get_saved_variables(), kept = ctx->saved_data["kept"].toTensorVector();
    ctx->saved_data.erase("kept");
    fetch(ctx, pass, kGroupStash);
    const ExpertGroup group(pass, ctx->saved_data["tokens"].toInt());
    const at::Tensor x = saved[kNormed].defined()
                             ? saved[kNormed]
                             : recompute_norm(pass, layers.norm, saved[kNormedSum], saved[kNormScale]);
    const ExpertGradients experts = backward_of_experts(pass, layers, group, kept, gradients[0], x);
    fetch(ctx, pass, kOwnStash);
    const at::Tensor dnormed = backward_of_router(pass, layers, kept, x, {experts.weights, gradients[2], gradients[3]},
                                                  experts.x, gradients[6]);
    const ops::RmsNormGradients dx =
        norm_backward(pass, layers.norm, dnormed, gradients[1], saved[kNormedSum], saved[kNormScale]);
    const at::Tensor dresidual = ctx->saved_data["residual"].toBool() ? dx.residual : at::Tensor();
    return gradients_with_parts(ctx, dx.x, {dresidual, {}, {}, {}, {}, {}});
  }

 private:
  struct ExpertGradients {
    at::Tensor x;        // [own tokens, hidden]
    at::Tensor weights;  // [own tokens, k]
  };

  static ExpertGradients backward_of_experts(const PassState& pass, const Experts& layers, const ExpertGroup& group,
                                             const variable_list& kept, const at::Tensor& dy, const at::Tensor& x) {
    const Dispatched rows = select(pass.context, layers, group, kept[kChoices]);
    const ops::Selection& selection = rows.selection;
    PendingTensor gradients = group.start_gather(dy);
    PendingTensor inputs = group.start_gather(x);
    const at::Tensor dout = ops::take_rows(gradients.take(), selection);
    const at::Tensor dactivated = grouped_dgrad(pass, layers.down, dout, rows);
    const bool recomputes = !kept[kActivatedRows].defined();
    const ops::WeightedSwigluGradients swiglu =
        ops::weighted_swiglu_backward(dactivated, kept[kGateUpRows], rows.weights, selection, recomputes);
    PendingTensor dweights = group.start_reduce(ops::put_choices(swiglu.weights, selection));
    grouped_wgrad(pass, layers.down, dout, recomputes ? swiglu.out : kept[kActivatedRows], rows);
    const at::Tensor drows = grouped_dgrad(pass, layers.gate_up, swiglu.gate_up, rows);
    PendingTensor dx = group.start_reduce(ops::combine_rows(drows, selection));
    grouped_wgrad(pass, layers.gate_up, swiglu.gate_up, ops::take_rows(inputs.take(), selection), rows);
    return {.x = dx.take(), .weights = dweights.take()};
  }

  // Adds `dx`, the router's gradient of x, and the shared expert's gradient `dx_of_shared`, which may be undefined. The
  // sum is computed in the accumulator type and rounded once.
  static at::Tensor backward_of_router(const PassState& pass, const Experts& layers, const variable_list& kept,
                                       const at::Tensor& x, const ops::RoutingGradients& gradients,
                                       const at::Tensor& dx, const at::Tensor& dx_of_shared) {
    const ops::Routing routing{.probabilities = kept[kProbabilities],
                               .logsumexp = kept[kLogsumexp],
                               .experts = kept[kChosen],
                               .weights = kept[kChosenWeights]};
    const at::Tensor dlogits = ops::route_backward(routing, layers.options, gradients, kept[kCounted]);
    at::Tensor sum = dx;
    if (dx_of_shared.defined()) sum = dx.to(dlogits.scalar_type()).add(dx_of_shared.to(dlogits.scalar_type()));
    {
      ConsumedWeight weight(pass, layers.router);
      sum = ops::add_router_dgrad(sum, dlogits, weight.tensor());
    }
    produce_gradient(pass, layers.router,
                     [&](at::Tensor& result, bool accumulate) { ops::router_wgrad(dlogits, x, result, accumulate); });
    return sum.to(dx.scalar_type());
  }
};

}  // namespace

ExpertsOutput experts_forward(const PassState& pass, const Experts& layers, const SummedParts& x,
                              const at::Tensor& residual, const at::Tensor& counted, std::int64_t tokens) {
  const variable_list out =
      ExpertsFunction::apply(x.parts(), optional_of(residual), counted, &pass, &layers, tokens, is_kept(x.parts()[0]));
  ExpertsOutput result{
      .y = out[0],
      .sum = out[1],
      .terms = {.probabilities = out[2], .logsumexp_squares = out[3], .counts = out[4], .dropped = out[5]}};
  if (!layers.shared) return result;
  const FeedForwardOutput shared = feed_forward(pass, *layers.shared, out[6], {}, tokens);
  result.y = at::add(result.y, sum_of(pass, shared.y));
  return result;
}

}  // namespace tessera::nn
