#include "tessera/settings/text/number_rules.h"

#include <charconv>
#include <cmath>

namespace tessera::settings {
namespace {

double parse_number(std::string_view text) {
  double number = -1;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  if (text.empty() || error != std::errc{} || stopped != end || !std::isfinite(number) || number < 0)
    throw InputError("got '{}', expected a number of at least 0", text);
  return number;
}

}  // namespace

std::vector<base::NameRule<double>> parse_number_rules(std::string_view text, std::string_view where) {
  return base::parse_name_rules(text, where, "NUMBER", parse_number);
}

}  // namespace tessera::settings
