#include "tessera/nn/experts/router_loss.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/div.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>

#include <limits>

#include "tessera/nn/autograd.h"

namespace tessera::nn {
namespace {

// With T counted tokens, E experts and k choices, layer l has f_e = counts_e / (T k) and P_e = probabilities_e / T. The
// auxiliary loss of the layer is E sum_e f_e P_e. The pooled loss has the means over all L layers, without the division
// by k: f_e = sum_l counts_e / (L T), P_e = sum_l probabilities_e / (L T).
struct Factors {
  at::Tensor probabilities;  // [layers, experts] fp64: the loss times T is the sum of factor * probability
  double squares = 0;        // the z loss times T is the sum of squares * logsumexp^2
};

// `tokens` contains T, an fp64 scalar on the device of the counts. The host does not read T, because reading from a GPU
// would make the host wait. Without counted tokens, all counts, sums and losses are 0.
Factors factors_of(const at::Tensor& counts, const RouterLossOptions& options, const at::Tensor& tokens) {
  const auto layers = static_cast<double>(counts.size(0)), experts = static_cast<double>(counts.size(1));
  const at::Tensor coefficient =
      at::div(at::full({}, options.aux_coefficient * experts, tokens.options()), tokens.clamp_min(1));
  const at::Tensor wide = counts.to(at::kDouble);
  Factors factors{.probabilities = {}, .squares = options.z_coefficient};
  if (options.aux == MoeAux::layer)
    factors.probabilities = at::mul(wide, at::div(coefficient, static_cast<double>(options.experts_per_token)));
  else
    factors.probabilities =
        at::mul(wide.sum(0, /*keepdim=*/true), at::div(coefficient, layers * layers)).expand_as(wide);
  return factors;
}

class RouterLossFunction : public torch::autograd::Function<RouterLossFunction> {
 public:
  // probabilities: [layers, experts]. squares: [layers]. Returns the objective; its value is written to `value`.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& probabilities, const at::Tensor& squares,
                            const Factors* factors, double scale, at::Tensor* losses) {
    const at::Tensor aux = at::mul(factors->probabilities, probabilities.to(at::kDouble)).sum();
    const at::Tensor z = at::mul(squares.to(at::kDouble), factors->squares).sum();
    *losses = at::stack({aux, z});
    ctx->save_for_backward({factors->probabilities});
    ctx->saved_data["squares"] = factors->squares * scale;
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["type"] = probabilities.scalar_type();
    ctx->saved_data["layers"] = squares.size(0);
    // The host reads no value from a GPU, because reading would make the host wait.
    const double value =
        aux.is_cpu() ? scale * (aux.item<double>() + z.item<double>()) : std::numeric_limits<double>::quiet_NaN();
    return at::scalar_tensor(value, at::kDouble);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const double factor = gradients[0].item<double>();
    const at::Tensor probabilities = ctx->get_saved_variables()[0];
    const auto type = static_cast<at::ScalarType>(ctx->saved_data["type"].toInt());
    const at::Tensor squares = at::full({ctx->saved_data["layers"].toInt()},
                                        factor * ctx->saved_data["squares"].toDouble(), probabilities.options());
    return {at::mul(probabilities, factor * ctx->saved_data["scale"].toDouble()).to(type),
            squares.to(type),  // infinite if the coefficient exceeds the range of the type
            {},
            {},
            {}};
  }
};

}  // namespace

RouterLoss router_loss(const std::vector<RouterTerms>& terms, const RouterLossOptions& options,
                       const at::Tensor& counted, double scale) {
  std::vector<at::Tensor> probabilities, squares, counts, dropped;
  for (const RouterTerms& layer : terms) {
    probabilities.push_back(layer.probabilities);
    squares.push_back(layer.logsumexp_squares);
    counts.push_back(layer.counts);
    dropped.push_back(layer.dropped);
  }
  const at::Tensor all_counts = at::stack(counts);
  const Factors factors = factors_of(all_counts, options, counted.sum().to(at::kDouble));
  RouterLoss loss;
  at::Tensor losses;
  loss.objective = RouterLossFunction::apply(at::stack(probabilities), at::cat(squares), &factors, scale, &losses);
  const at::Tensor all_dropped = at::cat(dropped).to(at::kDouble).sum(0, /*keepdim=*/true);
  loss.values = at::cat({losses, all_dropped, all_counts.to(at::kDouble).flatten()});
  return loss;
}

}  // namespace tessera::nn
