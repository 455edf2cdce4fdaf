// The distribution of a microbatch's tokens over the ranks of a tp group, under sequence parallelism.
#pragma once
#include <cstdint>
#include <vector>

#include "tessera/layout/layout.h"

namespace tessera::nn {

// Consecutive ranks hold consecutive tokens. Every rank of the group has the same `weights`.
struct TokenSplit {
  std::vector<std::int64_t> weights = {};  // by tp rank: share of the tokens, 0 for no tokens; empty: equal shares

  // Returns the tokens of a rank: [tokens * a / w, tokens * b / w). Here w is the sum of all weights, a is the sum of
  // the weights of lower ranks, and b is a + the rank's weight. Equal weights give layout::even_part. Throws Error if
  // the number of weights is not `size`, a weight is negative, or w is 0 or above 2^31.
  layout::Range part(std::int64_t tokens, int rank, int size) const;
};

}  // namespace tessera::nn
