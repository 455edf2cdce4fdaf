// Places of a mesh. A place is (dp, gtp, tp slot). The tp slots of one (dp, gtp) are a tp group.
#pragma once
#include <compare>
#include <map>
#include <vector>

namespace tessera::settings {

struct TpGroup {
  int dp = 0, gtp = 0;

  auto operator<=>(const TpGroup&) const = default;
};
// Tp slots by tp group. The slots of a group are in ascending order.
using PlaceMap = std::map<TpGroup, std::vector<int>>;

}  // namespace tessera::settings
