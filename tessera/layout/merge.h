// Merges the pieces of a layout into fewer, larger pieces.
#pragma once
#include <vector>

#include "tessera/layout/layout.h"

namespace tessera::layout {

// Joins pieces that are adjacent both in the logical matrix and in the local buffer, side by side or from top to
// bottom. `pieces` must be the pieces of one rank of a valid layout, in the order of their offsets. The result is in
// the same order. Every element keeps its offset.
std::vector<Piece> merge_adjacent(const std::vector<Piece>& pieces);

}  // namespace tessera::layout
