// Chooses a token from logits.
#pragma once
#include <cstdint>
#include <span>

namespace tessera::serve {

struct Sampling {
  double temperature = 0;  // divides the logits; 0: the token with the greatest logit
  double top_p = 1;        // in (0, 1]
  std::uint64_t seed = 1;
};

// Returns the id of the token at position `position` of a sequence. A pure function of its arguments. Throws Error if a
// logit is not finite.
//
// Temperature 0 chooses the id with the greatest logit; of equal logits, the lowest id. For a temperature above 0, the
// probability of an id is softmax(logits / temperature), in fp64. The ids are ordered by falling probability; ids of
// equal probability are in ascending order. Only the shortest prefix whose sum is at least top_p can be chosen, each id
// in proportion to its probability (nucleus sampling, Holtzman et al. 2020). The random number depends on the seed and
// the position only.
std::int64_t choose_token(std::span<const double> logits, const Sampling& sampling, std::int64_t position);

}  // namespace tessera::serve
