// Formats ranks for error messages.
#pragma once
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tessera::rendezvous {

// Returns e.g. "0,2", "0-3" or "0,2-7". Keeps the order of `ranks`. Three or more consecutive ranks are written as a
// range.
std::string rank_list(std::span<const int> ranks);
// Returns the label of a group, e.g. "gtp[0,2]" or "world[0-7]".
std::string group_label(const std::string& name, std::span<const int> members);
// Returns the answers of several ranks as text, e.g. "rank 2: no answer; ranks 0,3-7: at graph #12". Ranks with equal
// answers are listed together, in the order of their first rank.
std::string answers_text(std::span<const std::pair<int, std::string>> answers);

}  // namespace tessera::rendezvous
