// Computes the logits of one token, for generation.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/nn/layers/output_loss.h"

namespace tessera::nn {

// hidden: [own tokens, hidden]. `tokens` is the number of tokens of all tp ranks. Returns the logits of the last token
// for the whole vocabulary, [vocab_size], in the accumulator type. The values are those of the output layer's product,
// rounded to the model's type, and have the same bits on every tp rank. Without gradients. Collective over tp.
at::Tensor last_logits(const PassState& pass, const VocabOutput& output, const at::Tensor& hidden, std::int64_t tokens,
                       std::int64_t vocab_size);

}  // namespace tessera::nn
