// Parses a list of steps with counts.
#pragma once
#include <cstdint>
#include <map>
#include <string>

namespace tessera::settings {

// Returns the count of each step. "5,6:2" means step 5 once and step 6 twice. An empty text gives an empty map. Throws
// InputError, which names `flag`, for: other texts; a step or count below 1; a repeated step.
std::map<std::int64_t, int> parse_step_times(const std::string& text, const std::string& flag);

}  // namespace tessera::settings
