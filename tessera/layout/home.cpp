#include "tessera/layout/home.h"

#include <algorithm>
#include <vector>

#include "tessera/layout/box_index.h"
#include "tessera/layout/dense.h"
#include "tessera/layout/merge.h"

namespace tessera::layout {

namespace {

// Returns the local layout of the remaining boxes of a part. If all pieces of the part were side by side and the boxes
// still have equal rows, the boxes stay side by side. Otherwise they are stacked from top to bottom.
LocalLayout lay(const std::vector<Box>& boxes, bool beside) {
  if (boxes.empty()) return {};
  const auto same_rows = [&](const Box& box) { return box.row == boxes.front().row && box.rows == boxes.front().rows; };
  if (beside && std::ranges::all_of(boxes, same_rows)) return stack_densely({{boxes}});
  std::vector<Band> bands;
  for (const Box& box : boxes) bands.push_back({{box}});
  return stack_densely(bands);
}

}  // namespace

Layout unique_home(const Layout& layout) {
  validate(layout);
  const BoxIndex index = index_of(layout);
  Layout home{.shape = layout.shape};
  std::vector<Holding> found;
  for (int rank = 0; rank < layout.size(); ++rank) {
    const LocalLayout given{.pieces = merge_adjacent(layout.ranks[rank].pieces)};
    std::vector<Box> boxes;
    for (const Piece& piece : given.pieces) {
      index.find(piece.box, found);
      std::erase_if(found, [&](const Holding& holding) { return holding.rank >= rank; });
      std::vector<Box> kept = uncovered(piece.box, found);
      std::sort(kept.begin(), kept.end(),
                [](const Box& a, const Box& b) { return a.row != b.row ? a.row < b.row : a.col < b.col; });
      boxes.insert(boxes.end(), kept.begin(), kept.end());
    }
    home.ranks.push_back(lay(boxes, bands_of(given).size() == 1));
  }
  return home;
}

}  // namespace tessera::layout
