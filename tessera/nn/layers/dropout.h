// Dropout of the tensors that are added to the residual stream. The norm that adds a tensor to the stream also applies
// the dropout, because the norm reads the tensor anyway (ops/norm/rms_norm.h).
#pragma once
#include <cstdint>

#include "tessera/nn/random_state.h"
#include "tessera/ops/dropout.h"

namespace tessera::nn {

// The dropout probabilities of a run, in [0, 1).
struct DropoutOptions {
  double hidden = 0;     // probability for the outputs of attention and of the feed-forward part
  double embedding = 0;  // probability for the embeddings

  bool drops() const { return hidden > 0 || embedding > 0; }
};

// The dropout that a norm applies to its input x before the residual is added.
struct InputDropout {
  double probability = 0;
  std::uint32_t site = 0;
};
// Returns the dropout of a norm of the residual stream. A site is a tensor that is added to the stream, and layers are
// counted from 0. Site 0 is the embeddings. Site 2 l + 1 is the output of attention in layer l. Site 2 l + 2 is the
// output of the feed-forward part in layer l.
inline InputDropout input_dropout(const DropoutOptions& options, std::uint32_t site) {
  return {.probability = site == 0 ? options.embedding : options.hidden, .site = site};
}

inline ops::Dropout dropout_of(const RandomState& random, const InputDropout& input) {
  if (random.step == nullptr || input.probability == 0) return {};
  return {.probability = input.probability,
          .seed = random.seed,
          .site = input.site,
          .step = random.step,
          .first_token = random.first_own_token};
}

}  // namespace tessera::nn
