// Dropout of the tensors that are added to the residual stream. The norm that adds a tensor to the stream also applies
// the dropout, because the norm reads the tensor anyway (ops/norm/rms_norm.h).
#pragma once
#include <cstdint>

#include "tessera/ops/dropout.h"

namespace tessera::nn {

// The dropout probabilities of a run, in [0, 1).
struct DropoutOptions {
  double hidden = 0;     // probability for the outputs of attention and of the feed-forward part
  double embedding = 0;  // probability for the embeddings
  std::uint64_t seed = 0;

  bool drops() const { return hidden > 0 || embedding > 0; }
};

// The dropout that a norm applies to its input x before the residual is added.
struct InputDropout {
  double probability = 0;
  std::uint64_t seed = 0;
  std::uint32_t site = 0;
};
// Returns the dropout of a norm of the residual stream. A site is a tensor that is added to the stream, and layers are
// counted from 0. Site 0 is the embeddings. Site 2 l + 1 is the output of attention in layer l. Site 2 l + 2 is the
// output of the feed-forward part in layer l.
inline InputDropout input_dropout(const DropoutOptions& options, std::uint32_t site) {
  return {.probability = site == 0 ? options.embedding : options.hidden, .seed = options.seed, .site = site};
}

// The state of a microbatch that determines its dropout masks. All passes of the microbatch use the same state.
struct DropoutState {
  // The number of the step, in device memory. Null: dropout is off, as in an evaluation.
  const std::int64_t* step = nullptr;
  std::int64_t first_token = 0;  // position in the step's global batch of this rank's first own token of the microbatch
};
inline ops::Dropout dropout_of(const DropoutState& state, const InputDropout& input) {
  if (state.step == nullptr || input.probability == 0) return {};
  return {.probability = input.probability,
          .seed = input.seed,
          .site = input.site,
          .step = state.step,
          .first_token = state.first_token};
}

}  // namespace tessera::nn
