// The held-out sets of a run, each with its own loss.
#pragma once
#include <string>
#include <vector>

namespace tessera::data {

struct HeldOutSet {
  std::string name;                // empty: the set without a name
  std::vector<std::string> blend;  // as TrainingDataOptions::blend
};

// Parses [W] PREFIX ... NAME=[W] PREFIX ... . A word that begins with letters, digits, '_', '-' or '.' and then '='
// begins a named set. Throws InputError, which names `where` ("--valid") and the set, if a name occurs twice or if
// nothing follows a name.
std::vector<HeldOutSet> parse_held_out(const std::vector<std::string>& words, const std::string& where);

}  // namespace tessera::data
