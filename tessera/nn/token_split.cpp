#include "tessera/nn/token_split.h"

#include "tessera/base/error.h"

namespace tessera::nn {

layout::Range TokenSplit::part(std::int64_t tokens, int rank, int size) const {
  const layout::Range even = layout::even_part(tokens, rank, size);
  if (weights.empty()) return even;
  TESSERA_CHECK(weights.size() == static_cast<std::size_t>(size),
                "the split of tokens has weights for {} tp ranks, expected {}", weights.size(), size);
  constexpr std::int64_t most = std::int64_t{1} << 31;
  std::int64_t total = 0, before = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    TESSERA_CHECK(weights[i] >= 0 && weights[i] <= most,
                  "the split of tokens has weight {} for tp rank {}, expected [0, {}]", weights[i], i, most);
    if (i < static_cast<std::size_t>(rank)) before += weights[i];
    total += weights[i];
  }
  TESSERA_CHECK(total >= 1 && total <= most, "the weights of the split of tokens sum to {}, expected [1, {}]", total,
                most);
  // Computes tokens * sum / total without an overflow.
  const auto bound = [&](std::int64_t sum) { return tokens / total * sum + tokens % total * sum / total; };
  return {.begin = bound(before), .end = bound(before + weights[static_cast<std::size_t>(rank)])};
}

}  // namespace tessera::nn
