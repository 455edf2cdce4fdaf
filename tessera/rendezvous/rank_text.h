// Ranks in messages.
#pragma once
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tessera::rendezvous {

// "0,2", "0-3", "0,2-7": in the order given, three or more that follow each other as a range.
std::string rank_list(std::span<const int> ranks);
// A group's: "gtp[0,2]", "world[0-7]".
std::string group_label(const std::string& name, std::span<const int> members);
// What each of some ranks says, those that say the same together, in the order of the first of each:
// "rank 2: no answer; ranks 0,3-7: at graph #12".
std::string answers_text(std::span<const std::pair<int, std::string>> answers);

}  // namespace tessera::rendezvous
