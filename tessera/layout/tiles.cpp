#include "tessera/layout/tiles.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::layout {
namespace {

std::int64_t ceil_div(std::int64_t value, std::int64_t by) {
  return value / by + (value % by != 0 ? 1 : 0);
}

Shape grid_of(const LocalLayout& local, Tile tile) {
  std::int64_t rows = 0;
  for (const Piece& piece : local.pieces) {
    if (piece.box.cols != local.pieces.front().box.cols)
      throw Error("tile_grid: a piece is {} columns wide, expected {} as the first of its rank", piece.box.cols,
                  local.pieces.front().box.cols);
    rows += piece.box.rows;
  }
  const std::int64_t cols = rows > 0 ? local.pieces.front().box.cols : 0;
  return {.rows = ceil_div(rows, tile.rows), .cols = ceil_div(cols, tile.cols)};
}

}  // namespace

Layout tile_grid(const Layout& layout, Tile tile) {
  if (tile.rows < 1 || tile.cols < 1)
    throw Error("tile_grid: a tile of {} x {}, expected 1 x 1 or more", tile.rows, tile.cols);
  if (tile.is_element()) return layout;
  Layout grid{.shape = {.rows = 0, .cols = 0}, .state = layout.state};
  for (const LocalLayout& local : layout.ranks) {
    const Shape own = grid_of(local, tile);
    LocalLayout tiles{.size = own.elements()};
    if (own.elements() > 0)
      tiles.pieces.push_back({.box = {.row = grid.shape.rows, .rows = own.rows, .col = 0, .cols = own.cols},
                              .offset = 0,
                              .stride = own.cols});
    grid.shape.rows += own.rows;
    grid.shape.cols = std::max(grid.shape.cols, own.cols);
    grid.ranks.push_back(std::move(tiles));
  }
  return grid;
}

}  // namespace tessera::layout
