#include "tessera/base/text/similar_name.h"

#include <algorithm>

namespace tessera::base {
namespace {

// Returns the distance (SimilarName) between two short names.
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

std::optional<SimilarName> similar_name(std::string_view name, const std::vector<std::string>& candidates) {
  int limit = name.size() > 8 ? 4 : 3;
  std::optional<SimilarName> best;
  for (const std::string& candidate : candidates) {
    // Names of different lengths have at least this distance. A long name is not compared.
    const std::size_t difference = std::max(name.size(), candidate.size()) - std::min(name.size(), candidate.size());
    if (difference >= static_cast<std::size_t>(limit)) continue;
    if (const int distance = edit_distance(name, candidate); distance < limit) {
      limit = distance;
      best = SimilarName{.name = candidate, .distance = distance};
    }
  }
  return best;
}

}  // namespace tessera::base
