// Continues a sequence of tokens.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/serve/frozen_model.h"
#include "tessera/serve/sampling.h"

namespace tessera::serve {

struct Generation {
  std::vector<std::int64_t> prompt;  // at least one token
  std::int64_t tokens = 1;           // maximum number of new tokens, at least 1
  std::vector<std::int64_t> stop;    // ids after which generation stops; the result contains the id
  Sampling sampling;
};
// Returns the number of tokens that the model reads. The model does not read the last new token.
std::int64_t positions_of(const Generation& generation);

// Returns the new tokens, the same on every rank: rank 0 chooses each token. The prompt takes one forward pass, and
// each further token takes one forward pass. Collective over the world. Throws the errors of choose_token.
std::vector<std::int64_t> generate(FrozenModel& model, const Generation& generation);

}  // namespace tessera::serve
