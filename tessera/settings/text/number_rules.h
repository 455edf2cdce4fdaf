// Rules that give numbers to parameters by name, such as factors of the learning rate.
#pragma once
#include <string_view>
#include <vector>

#include "tessera/base/text/name_rules.h"

namespace tessera::settings {

// Parses rules of the form "PATTERN=NUMBER,PATTERN=NUMBER" (base/text/name_rules.h). Throws InputError for any other
// text, and for a number that is negative or not finite. Its message begins with `where`.
std::vector<base::NameRule<double>> parse_number_rules(std::string_view text, std::string_view where);

}  // namespace tessera::settings
