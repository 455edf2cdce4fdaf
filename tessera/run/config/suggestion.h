// Suggestions for misspelled names of flags and settings.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace tessera::run {

// Returns ": did you mean 'X'?", where X is the candidate nearest to `name`. Returns "" if the nearest candidate is
// more than two edits away (three for long names).
std::string suggestion(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace tessera::run
