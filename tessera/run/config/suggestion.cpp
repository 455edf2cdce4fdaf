#include "tessera/run/config/suggestion.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace tessera::run {
namespace {

// Returns the number of insertions, deletions, replacements and swaps of neighbours between two short names.
int edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int>> cost(a.size() + 1, std::vector<int>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i)
    for (std::size_t j = 0; j <= b.size(); ++j) {
      int& best = cost[i][j];
      if (i == 0 || j == 0) {
        best = static_cast<int>(i + j);
        continue;
      }
      best = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, cost[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) best = std::min(best, cost[i - 2][j - 2] + 1);
    }
  return cost.back().back();
}

}  // namespace

std::string suggestion(std::string_view name, const std::vector<std::string>& candidates) {
  int best = name.size() > 8 ? 4 : 3;
  std::string nearest;
  for (const std::string& candidate : candidates)
    if (const int distance = edit_distance(name, candidate); distance < best) {
      best = distance;
      nearest = candidate;
    }
  return nearest.empty() ? "" : fmt::format(": did you mean '{}'?", nearest);
}

}  // namespace tessera::run
