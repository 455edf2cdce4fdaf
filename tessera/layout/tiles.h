// Layouts of arrays that have one element a tile of a tensor: scales of a number format.
#pragma once
#include <cstdint>

#include "tessera/layout/layout.h"

namespace tessera::layout {

// So many rows and columns of a rank's dense local matrix have one element; at the edges less of them.
struct Tile {
  std::int64_t rows = 1, cols = 1;
  bool is_element() const { return rows == 1 && cols == 1; }
  bool operator==(const Tile&) const = default;
};

// The layout of one element a tile of every rank's dense local matrix (its pieces stacked, which have one width). Its
// logical matrix is the ranks' grids of ceil(rows / tile.rows) x ceil(cols / tile.cols), one below the other: a tile
// belongs to one rank, also where two ranks' parts meet inside what would be one tile of the logical matrix. The layout
// itself for a tile of one element. For n and align a multiple of tile.rows,
//     tile_grid(cut_local_rows(layout, n, align), tile)  and
//     cut_local_rows(tile_grid(layout, tile), n, align / tile.rows)
// give every rank the same local matrix. Errors: a tile below 1 x 1, pieces of several widths.
Layout tile_grid(const Layout& layout, Tile tile);

}  // namespace tessera::layout
