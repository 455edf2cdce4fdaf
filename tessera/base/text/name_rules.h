// Rules that give values to names: "PATTERN=VALUE,PATTERN=VALUE,...". A pattern is a shell pattern: * matches any
// characters. The last rule that matches a name decides.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text/printable.h"

namespace tessera::base {

template <typename T>
struct NameRule {
  std::string pattern;
  T value{};
  bool is_default = false;  // true: a default of the program, not a rule of the user

  bool operator==(const NameRule&) const = default;
};

bool matches(const std::string& pattern, const std::string& name);

// Returns the last rule that matches the name; null if no rule matches.
template <typename T>
const NameRule<T>* rule_of(const std::vector<NameRule<T>>& rules, const std::string& name) {
  for (auto rule = rules.rbegin(); rule != rules.rend(); ++rule)
    if (matches(rule->pattern, name)) return &*rule;
  return nullptr;
}

// Splits a text into rules. `expected` is the word for a value, such as "FORMAT". Throws InputError, whose message
// begins with `where`, for a rule without a pattern or a value.
std::vector<NameRule<std::string>> split_name_rules(std::string_view text, std::string_view where,
                                                    std::string_view expected);

// Parses rules. parse(text) returns the value of a text, and throws InputError for other texts. Throws the errors of
// split_name_rules, and those of `parse` with `where` and the rule.
template <typename Parse>
auto parse_name_rules(std::string_view text, std::string_view where, std::string_view expected, const Parse& parse) {
  std::vector<NameRule<decltype(parse(text))>> rules;
  for (const NameRule<std::string>& rule : split_name_rules(text, where, expected)) {
    try {
      rules.push_back({rule.pattern, parse(rule.value)});
    } catch (const InputError& error) {
      throw InputError("{}: in '{}={}': {}", where, excerpt(rule.pattern), excerpt(rule.value),
                       excerpt(error.what(), 300));
    }
  }
  return rules;
}

// Throws InputError if a rule does not match any of `names`, or if later rules match all names that it matches. The
// message begins with `where`. `kind` names what a pattern should match, such as "a matrix".
void check_name_rules(std::span<const NameRule<std::string>> rules, std::span<const std::string> names,
                      std::string_view where, std::string_view kind);

// Returns the name with * instead of the numbers of layers: "layers.*.mlp.down.weight".
std::string pattern_of(std::string_view name);

}  // namespace tessera::base
