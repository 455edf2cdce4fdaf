#include "tessera/nn/nvfp4_recipe.h"

#include "tessera/base/text/name_hash.h"

namespace tessera::nn {

bool transforms_wgrad(const Context& context, const Weight& weight) {
  return weight.product == quant::Format::nvfp4 && context.products.hadamard;
}

bool rounds_randomly(const Context& context, const Weight& weight) {
  return weight.product == quant::Format::nvfp4 && context.products.rounding == GradientRounding::stochastic;
}

quant::StackRounding stack_rounding(const PassState& pass, const Weight& weight, const GradientPart& gradient) {
  if (!rounds_randomly(pass.context, weight)) return {};
  return {.site = {.seed = pass.random.seed,
                   .parameter = base::name_hash(pass.context.program.parameters().spec(weight.id).name),
                   .matrix = gradient.matrix,
                   .part = gradient.part},
          .step = pass.random.step,
          .first_token = gradient.first_token};
}

quant::StochasticRounding gradient_rounding(const PassState& pass, const Weight& weight, const GradientPart& gradient) {
  return stack_rounding(pass, weight, gradient).of(0);
}

}  // namespace tessera::nn
