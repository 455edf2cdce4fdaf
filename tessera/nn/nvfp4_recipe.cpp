#include "tessera/nn/nvfp4_recipe.h"

namespace tessera::nn {

bool transforms_wgrad(const Context& context, const Weight& weight) {
  return weight.product == quant::Format::nvfp4 && context.products.hadamard;
}

quant::StochasticRounding gradient_rounding(const Context& context, const Weight& weight,
                                            const GradientPart& gradient) {
  if (weight.product != quant::Format::nvfp4 || context.products.rounding == GradientRounding::nearest) return {};
  return {.key = quant::rounding_key({.seed = context.random.seed,
                                      .parameter = context.program.parameters().spec(weight.id).name,
                                      .matrix = gradient.matrix,
                                      .part = gradient.part}),
          .step = context.random.step,
          .first_token = gradient.first_token};
}

}  // namespace tessera::nn
