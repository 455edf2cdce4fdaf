// Suggestions for names of flags and settings that are misspelled, or that other training programs use.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace tessera::settings {

// Returns ": did you mean 'X'?", where X is the candidate that has the meaning of `name` in other training programs, or
// the candidate nearest to `name`. Returns "" if neither exists: the nearest candidate is more than two edits away
// (three for long names).
std::string suggestion(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace tessera::settings
