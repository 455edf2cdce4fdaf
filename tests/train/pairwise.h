// Sets of runs that cover all pairs of options.
#pragma once
#include <functional>
#include <vector>

namespace tessera::train::testing {

// The choices of one run: a level of each factor.
using Choice = std::vector<int>;

// Returns choices that cover every pair of levels that a valid choice can have. `levels` has the number of levels of
// each factor. Each choice is the one of 200 random choices that covers the most new pairs.
std::vector<Choice> pairwise_set(const std::vector<int>& levels, unsigned seed,
                                 const std::function<bool(const Choice& choice)>& is_valid);

// Returns the value of an environment variable, or `otherwise` if it is not set.
unsigned number_of_environment(const char* variable, unsigned otherwise);

}  // namespace tessera::train::testing
