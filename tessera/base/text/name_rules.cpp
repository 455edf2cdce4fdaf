#include "tessera/base/text/name_rules.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>

namespace tessera::base {
namespace {

// Returns the names as a list of patterns: "layers.*.mlp.down.weight, output.weight".
std::string patterns_of(std::span<const std::string> names) {
  std::vector<std::string> patterns;
  for (const std::string& name : names)
    if (std::string pattern = pattern_of(name); std::ranges::find(patterns, pattern) == patterns.end())
      patterns.push_back(std::move(pattern));
  return fmt::format("{}", fmt::join(patterns, ", "));
}

}  // namespace

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

std::vector<NameRule<std::string>> split_name_rules(std::string_view text, std::string_view where,
                                                    std::string_view expected) {
  std::vector<NameRule<std::string>> rules;
  while (!text.empty()) {
    const std::string_view rule = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), rule.size() + 1));
    const std::size_t equals = rule.find('=');
    if (equals == std::string_view::npos || equals == 0)
      throw InputError("{}: got '{}', expected PATTERN={},PATTERN={},...", where, excerpt(rule), expected, expected);
    rules.push_back({std::string(rule.substr(0, equals)), std::string(rule.substr(equals + 1))});
  }
  return rules;
}

void check_name_rules(std::span<const NameRule<std::string>> rules, std::span<const std::string> names,
                      std::string_view where, std::string_view kind) {
  for (auto rule = rules.begin(); rule != rules.end(); ++rule) {
    const auto is_matched = [&](const std::string& name) { return matches(rule->pattern, name); };
    const auto is_decided = [&](const std::string& name) {
      return is_matched(name) &&
             std::none_of(rule + 1, rules.end(), [&](const auto& later) { return matches(later.pattern, name); });
    };
    if (std::ranges::none_of(names, is_matched))
      throw InputError("{}: got {}={}, expected the name of {}: {}", where, excerpt(rule->pattern), rule->value, kind,
                       patterns_of(names));
    if (std::ranges::none_of(names, is_decided))
      throw InputError(
          "{}: got {}={}, which has no effect: later rules match the same weights. Remove it, or move it to the end",
          where, excerpt(rule->pattern), rule->value);
  }
}

std::string pattern_of(std::string_view name) {
  std::string pattern;
  for (std::size_t at = 0; at <= name.size();) {
    const std::string_view part = name.substr(at, std::min(name.find('.', at), name.size()) - at);
    const bool is_number = !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
    pattern += (at == 0 ? "" : ".") + (is_number ? "*" : std::string(part));
    at += part.size() + 1;
  }
  return pattern;
}

}  // namespace tessera::base
