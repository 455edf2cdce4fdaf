// How sequence parallelism deals a microbatch's tokens out to the ranks of a tp group.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/layout/layout.h"

namespace tessera::nn {

// The ranks' tokens follow each other in rank order. The same on every rank of the group.
struct TokenSplit {
  std::vector<std::int64_t> weights = {};  // by tp rank, 0 for one without tokens; empty: all alike

  // Returns which of `tokens` tokens a rank has: [tokens * a / w, tokens * b / w), where w is the sum of all weights, a
  // that of the weights before the rank's and b = a + its own. Equal weights give layout::even_part. Errors: weights
  // for another number of ranks; a negative weight; a sum of 0 or above 2^31.
  layout::Range part(std::int64_t tokens, int rank, int size) const;
};

}  // namespace tessera::nn
