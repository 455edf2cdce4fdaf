// Layouts of arrays that hold one element for each tile of a tensor, such as the scales of a number format.
#pragma once
#include <cstdint>
#include <optional>

#include "tessera/layout/layout.h"

namespace tessera::layout {

// The rows and columns of a rank's dense local matrix that share one element. Tiles at the edges may be smaller.
struct Tile {
  std::int64_t rows = 1, cols = 1;
  bool is_element() const { return rows == 1 && cols == 1; }
  bool operator==(const Tile&) const = default;
};

// Stacks the pieces of each rank into one dense matrix and divides that matrix into tiles. The result has one element
// for each tile: a rank has a grid of ceil(rows / tile.rows) x ceil(cols / tile.cols). The logical matrix of the result
// holds the grids of all ranks from top to bottom. Every tile therefore belongs to one rank, even if the boundary
// between two ranks is inside a tile of the logical tensor. A tile of one element returns `layout` itself. For any n,
// and for an align that is a multiple of tile.rows,
//     tile_grid(cut_local_rows(layout, n, align), tile)  and
//     cut_local_rows(tile_grid(layout, tile), n, align / tile.rows)
// give every rank a local matrix of the same shape. Throws Error for a tile smaller than 1 x 1 and for pieces of
// different widths.
Layout tile_grid(const Layout& layout, Tile tile);

// Returns the tile grid of a layout whose ranks overlap. `home` holds each row once (unique_home). The result places
// the tiles of `layout` in the logical matrix of tile_grid(home). Returns nullopt if a tile of some rank is not a tile
// of `home`. In this case a part begins or ends inside a tile, or holds only some of the columns. Throws the errors of
// tile_grid.
std::optional<Layout> overlapping_tile_grid(const Layout& layout, const Layout& home, Tile tile);

}  // namespace tessera::layout
