// Layouts of arrays that hold one element for each tile of a tensor, such as the scales of a number format.
#pragma once
#include <cstdint>
#include <optional>
#include <span>

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
// between two ranks is inside a tile of the logical tensor. A tile of one element returns `layout` itself.
// `matrix_rows`: by rank, the rows of each matrix of the rank's stack (RowUnits). Each matrix of a stack is divided
// into tiles alone. 0 or an empty list: one matrix. For any n, and for units whose rows are a multiple of tile.rows,
//     tile_grid(cut_local_rows(layout, n, units), tile)  and
//     cut_local_rows(tile_grid(layout, tile), n, units_of_tiles(units, tile.rows))
// give every rank a local matrix of the same shape, if the cut on the left is divided at the ends of its matrices.
// Throws Error for a tile smaller than 1 x 1, for pieces of different widths, and for a part that is not a stack of
// whole matrices.
Layout tile_grid(const Layout& layout, Tile tile, std::span<const std::int64_t> matrix_rows = {});
// Returns the units of the grid of tiles that correspond to the units of a stack.
RowUnits units_of_tiles(const RowUnits& units, std::int64_t tile_rows);

// Returns the tile grid of a layout whose ranks overlap. `home` holds each row once (unique_home). The result places
// the tiles of `layout` in the logical matrix of tile_grid(home). Returns nullopt if a tile of some rank is not a tile
// of `home`. In this case a part begins or ends inside a tile, or holds only some of the columns. Throws the errors of
// tile_grid.
std::optional<Layout> overlapping_tile_grid(const Layout& layout, const Layout& home, Tile tile);

}  // namespace tessera::layout
