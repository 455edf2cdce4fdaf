// The recipe of nvfp4 products (Pretraining Large Language Models with NVFP4, arXiv 2509.25149). Both operands of wgrad
// are transformed along the tokens, and gradients are rounded stochastically. ProductOptions selects the two parts.
#pragma once
#include <cstdint>

#include "tessera/nn/weight.h"
#include "tessera/quant/formats/stochastic_rounding.h"

namespace tessera::nn {

// Returns whether the operands of the weight's wgrad are transformed before they are quantized.
bool transforms_wgrad(const Context& context, const Weight& weight);
// Returns whether the gradients of the weight's products are rounded stochastically in training steps.
bool rounds_randomly(const Context& context, const Weight& weight);

// The rows and columns of a gradient that is rounded. `matrix` and `part` are as in quant::RoundingSite.
struct GradientPart {
  std::uint32_t matrix = quant::RoundingSite().matrix;
  std::uint32_t part = 0;
  std::int64_t first_token = 0;  // position of row 0 in the step's global batch
};
// Returns how the gradients of the weight's products are rounded. They are rounded to nearest even outside training
// steps (RandomState::step).
quant::StochasticRounding gradient_rounding(const PassState& pass, const Weight& weight, const GradientPart& gradient);
// The same for the gradients of a stack's products. `gradient.matrix` is the number of the first local matrix.
quant::StackRounding stack_rounding(const PassState& pass, const Weight& weight, const GradientPart& gradient);

}  // namespace tessera::nn
