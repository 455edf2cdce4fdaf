// Steps with a number each, as a user writes them.
#pragma once
#include <cstdint>
#include <map>
#include <string>

namespace tessera::run {

// By step, how many times. "5,6:2" is step 5 once and step 6 twice; an empty text is no step. Errors: InputError naming
// `flag` for anything else, a step or a number below 1, and a step twice.
std::map<std::int64_t, int> parse_step_times(const std::string& text, const std::string& flag);

}  // namespace tessera::run
