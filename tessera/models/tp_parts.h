// Distributes heads, feed-forward columns and vocabulary rows over the ranks of a tp group.
#pragma once
#include <vector>

#include "tessera/layout/layout.h"

namespace tessera::models {

// By tp rank, the ranges of units that the rank holds, in local order: first the rank's own ranges, then adopted ones.
// Each unit is on exactly one rank.
using UnitRanges = std::vector<std::vector<layout::Range>>;

// Equal on all ranks of the group. A rank's list may be empty.
struct TpParts {
  UnitRanges heads;       // query heads
  UnitRanges ffn;         // columns of the feed-forward part
  UnitRanges vocabulary;  // rows of the embedding and of the output layer
  int tp_size() const { return static_cast<int>(heads.size()); }
};

}  // namespace tessera::models
