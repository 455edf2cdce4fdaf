// Fewer, larger pieces that say the same.
#pragma once
#include <vector>

#include "tessera/layout/layout.h"

namespace tessera::layout {

// Joins pieces that are neighbours both in the logical matrix and in the local buffer, side by side or one below the
// other. `pieces` are those of a valid layout, in local order, and so is the result; every element keeps its place.
std::vector<Piece> merge_adjacent(const std::vector<Piece>& pieces);

}  // namespace tessera::layout
