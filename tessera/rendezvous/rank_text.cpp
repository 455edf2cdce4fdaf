#include "tessera/rendezvous/rank_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::rendezvous {

std::string rank_list(std::span<const int> ranks) {
  std::string text;
  for (std::size_t begin = 0, end = 0; begin < ranks.size(); begin = end) {
    end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - begin == 2) --end;  // two consecutive ranks are not written as a range
    if (begin > 0) text += ",";
    text += end - begin > 1 ? fmt::format("{}-{}", ranks[begin], ranks[end - 1]) : fmt::format("{}", ranks[begin]);
  }
  return text;
}

std::string group_label(const std::string& name, std::span<const int> members) {
  return fmt::format("{}[{}]", name, rank_list(members));
}

std::string answers_text(std::span<const std::pair<int, std::string>> answers) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (const auto& [rank, answer] : answers) {
    const auto same = [&text = answer](const auto& group) { return group.first == text; };
    auto group = std::ranges::find_if(groups, same);
    if (group == groups.end()) group = groups.insert(group, {answer, {}});
    group->second.push_back(rank);
  }
  std::string text;
  for (const auto& [answer, ranks] : groups)
    text += fmt::format("{}rank{} {}: {}", text.empty() ? "" : "; ", ranks.size() == 1 ? "" : "s", rank_list(ranks),
                        answer);
  return text;
}

}  // namespace tessera::rendezvous
