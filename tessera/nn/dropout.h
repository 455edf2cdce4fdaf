// Dropout of the residual stream. The norm that adds a tensor to the stream also drops the tensor's elements, because
// it reads them anyway (ops/norm/rms_norm.h).
#pragma once
#include <cstdint>

#include "tessera/ops/dropout.h"

namespace tessera::nn {

// The probabilities of a run, in [0, 1).
struct DropoutOptions {
  double hidden = 0;     // of the outputs of attention and of the feed-forward part
  double embedding = 0;  // of the embeddings
  std::uint64_t seed = 0;

  bool drops() const { return hidden > 0 || embedding > 0; }
};

// The dropout of a norm's input x, before the residual is added.
struct InputDropout {
  double probability = 0;
  std::uint32_t site = 0;
};
// Returns the dropout before a norm of the residual stream. Site 0: embeddings, before the first norm. Site 2 l + 1:
// the output of attention of layer l (from 0). Site 2 l + 2: the output of the feed-forward part of layer l.
inline InputDropout input_dropout(const DropoutOptions& options, std::uint32_t site) {
  return {.probability = site == 0 ? options.embedding : options.hidden, .site = site};
}

// The state of a training step that determines its masks. The trainer and the model set it before each microbatch. A
// microbatch's backward runs before the next microbatch's forward, so it uses the same values.
struct DropoutState {
  DropoutOptions options;
  // The number of the step, in memory of the device; null: nothing is dropped, as in an evaluation.
  const std::int64_t* step = nullptr;
  std::int64_t first_token = 0;  // logical token of this rank's first own token of the microbatch
};
inline ops::Dropout dropout_of(const DropoutState& state, const InputDropout& input) {
  if (state.step == nullptr || input.probability == 0) return {};
  return {.probability = input.probability,
          .seed = state.options.seed,
          .site = input.site,
          .step = state.step,
          .first_token = state.first_token};
}

}  // namespace tessera::nn
