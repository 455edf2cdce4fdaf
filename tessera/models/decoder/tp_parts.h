// Distributes heads, feed-forward columns and vocabulary rows over the ranks of a tp group.
#pragma once
#include <vector>

#include "tessera/layout/layout.h"

namespace tessera::models {

// By tp rank: the ranges of units that the rank computes, in local order. The part that the rank has in a full group
// comes first, then the parts that the rank adopts. Each unit belongs to exactly one rank.
using UnitRanges = std::vector<std::vector<layout::Range>>;

// The units of all ranks of a tp group. All ranks of the group have the same TpParts. A rank's list may be empty.
struct TpParts {
  UnitRanges heads;       // query heads
  UnitRanges ffn;         // columns of the feed-forward part
  UnitRanges vocabulary;  // rows of the embedding and of the output layer
  int tp_size() const { return static_cast<int>(heads.size()); }
};

}  // namespace tessera::models
