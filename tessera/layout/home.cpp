#include "tessera/layout/home.h"

#include <algorithm>
#include <vector>

#include "tessera/layout/box_index.h"
#include "tessera/layout/merge.h"

namespace tessera::layout {

Layout unique_home(const Layout& layout) {
  validate(layout);
  const BoxIndex index = index_of(layout);
  Layout home{.shape = layout.shape};
  std::vector<Holding> found;
  for (int rank = 0; rank < layout.size(); ++rank) {
    LocalLayout local;
    for (const Piece& piece : merge_adjacent(layout.ranks[rank].pieces)) {
      index.find(piece.box, found);
      std::erase_if(found, [&](const Holding& holding) { return holding.rank >= rank; });
      std::vector<Box> kept = uncovered(piece.box, found);
      std::sort(kept.begin(), kept.end(),
                [](const Box& a, const Box& b) { return a.row != b.row ? a.row < b.row : a.col < b.col; });
      for (const Box& box : kept) {
        local.pieces.push_back({.box = box, .offset = local.size, .stride = box.cols});
        local.size += box.elements();
      }
    }
    local.pieces = merge_adjacent(local.pieces);
    home.ranks.push_back(std::move(local));
  }
  return home;
}

}  // namespace tessera::layout
