// Finds the name that a user may have meant.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::base {

struct SimilarName {
  std::string name;
  int distance = 0;  // number of insertions, deletions, replacements and swaps of neighbours
};

// Returns the candidate with the smallest distance to `name`. Returns nullopt if that distance is above two (three for
// names of more than eight letters).
std::optional<SimilarName> similar_name(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace tessera::base
