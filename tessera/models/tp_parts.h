// What each rank of a tp group holds of the things that tensor parallelism deals out.
#pragma once
#include <vector>

#include "tessera/layout/layout.h"

namespace tessera::models {

// By tp rank, the ranges of units that it holds, in local order: its own first, then adopted ones. Each unit is on one
// rank.
using UnitRanges = std::vector<std::vector<layout::Range>>;

// The same on all ranks of the group. A rank may have nothing of something.
struct TpParts {
  UnitRanges heads;       // query heads
  UnitRanges ffn;         // columns of the feed-forward part
  UnitRanges vocabulary;  // rows of the embedding and of the output layer
  int tp_size() const { return static_cast<int>(heads.size()); }
};

}  // namespace tessera::models
