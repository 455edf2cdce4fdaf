#include "tessera/data/held_out.h"

#include <algorithm>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

// Returns the length of the name with which the word begins; 0 if it begins no named set.
std::size_t name_length(std::string_view word) {
  constexpr std::string_view kOfNames = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  const std::size_t end = word.find_first_not_of(kOfNames);
  return end != std::string_view::npos && word[end] == '=' ? end : 0;
}

}  // namespace

std::vector<HeldOutSet> parse_held_out(const std::vector<std::string>& words, const std::string& where) {
  std::vector<HeldOutSet> sets;
  for (const std::string& word : words) {
    const std::size_t length = name_length(word);
    const std::string name = word.substr(0, length), rest = length > 0 ? word.substr(length + 1) : word;
    if (length > 0 && std::ranges::find(sets, name, &HeldOutSet::name) != sets.end())
      throw InputError("{}: set '{}' is given twice, expected a name for each set (write ./{} for a path)", where, name,
                       word);
    if (rest.empty()) throw InputError("{}: nothing follows '{}', expected {}[W] PREFIX ...", where, word, word);
    if (length > 0 || sets.empty()) sets.push_back({.name = name, .blend = {}});
    sets.back().blend.push_back(rest);
  }
  return sets;
}

}  // namespace tessera::data
