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
// for each tile: a rank has a grid of ceil(rows / tile.rows) x ceil(cols / tile.cols), and the logical matrix of the
// result holds the grids of all ranks, one below the other. So every tile belongs to one rank, even where the parts of
// two ranks meet inside what would be one tile of the logical tensor. A tile of one element gives `layout` itself. For
// any n, and for an align that is a multiple of tile.rows,
//     tile_grid(cut_local_rows(layout, n, align), tile)  and
//     cut_local_rows(tile_grid(layout, tile), n, align / tile.rows)
// give every rank a local matrix of the same shape. Errors: a tile smaller than 1 x 1, pieces of several widths.
Layout tile_grid(const Layout& layout, Tile tile);

// The same for a layout of which ranks hold rows together: its tiles within the logical matrix of tile_grid(home),
// where `home` holds each row once (unique_home). None where a rank's tile is not one of these: parts that overlap
// begin or end inside a tile, or hold columns in part. Errors: as tile_grid.
std::optional<Layout> overlapping_tile_grid(const Layout& layout, const Layout& home, Tile tile);

}  // namespace tessera::layout
