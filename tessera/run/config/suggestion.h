// Suggestions for misspelled names of flags and settings.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace tessera::run {

// Returns ": did you mean 'X'?" for the candidate nearest to `name` within two edits (three for long names), else "".
std::string suggestion(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace tessera::run
