#include "tessera/layout/tiles.h"

#include <algorithm>
#include <span>
#include <vector>

#include "tessera/base/ceil_div.h"
#include "tessera/base/error.h"
#include "tessera/layout/dense.h"

namespace tessera::layout {
namespace {

// `matrix_rows` 0: one matrix.
Shape grid_of(const LocalLayout& local, Tile tile, std::int64_t matrix_rows) {
  const Shape dense = dense_shape(local, "tile_grid");
  const std::int64_t height = matrix_rows > 0 ? matrix_rows : std::max<std::int64_t>(dense.rows, 1);
  if (dense.rows % height != 0)
    throw Error("tile_grid: a part has {} rows, expected a multiple of {}, the rows of one matrix", dense.rows, height);
  return {.rows = dense.rows / height * base::ceil_div(height, tile.rows),
          .cols = base::ceil_div(dense.cols, tile.cols)};
}

}  // namespace

RowUnits units_of_tiles(const RowUnits& units, std::int64_t tile_rows) {
  return {.rows = units.rows / tile_rows, .matrix_rows = base::ceil_div(units.matrix_rows, tile_rows)};
}

Layout tile_grid(const Layout& layout, Tile tile, std::span<const std::int64_t> matrix_rows) {
  if (tile.rows < 1 || tile.cols < 1)
    throw Error("tile_grid: got a tile of {} x {}, expected at least 1 x 1", tile.rows, tile.cols);
  if (tile.is_element()) return layout;
  Layout grid{.shape = {.rows = 0, .cols = 0}, .state = layout.state};
  for (std::size_t rank = 0; rank < layout.ranks.size(); ++rank) {
    const Shape own = grid_of(layout.ranks[rank], tile, matrix_rows.empty() ? 0 : matrix_rows[rank]);
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

namespace {

// The location of a row: the rank, and the row of its dense local matrix.
struct RowPlace {
  int rank = -1;
  std::int64_t row = 0;
};

bool has_whole_rows(const Layout& layout) {
  for (const LocalLayout& local : layout.ranks)
    for (const Piece& piece : local.pieces)
      if (piece.box.cols != layout.shape.cols) return false;
  return true;
}

// Returns the logical rows of a rank's stacked pieces.
std::vector<std::int64_t> rows_of(const LocalLayout& local) {
  std::vector<std::int64_t> rows;
  for (const Piece& piece : local.pieces)
    for (std::int64_t row = 0; row < piece.box.rows; ++row) rows.push_back(piece.box.row + row);
  return rows;
}

// Returns the tile of `home` that consists of exactly these rows, or nullopt.
std::optional<RowPlace> tile_of(std::span<const std::int64_t> rows, const std::vector<RowPlace>& places,
                                const std::vector<std::int64_t>& home_rows, std::int64_t tile_rows) {
  const RowPlace first = places[static_cast<std::size_t>(rows.front())];
  if (first.row % tile_rows != 0) return std::nullopt;
  const std::int64_t end = std::min(first.row + tile_rows, home_rows[static_cast<std::size_t>(first.rank)]);
  if (end - first.row != static_cast<std::int64_t>(rows.size())) return std::nullopt;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    const RowPlace& place = places[static_cast<std::size_t>(rows[i])];
    if (place.rank != first.rank || place.row != first.row + static_cast<std::int64_t>(i)) return std::nullopt;
  }
  return RowPlace{first.rank, first.row / tile_rows};
}

}  // namespace

std::optional<Layout> overlapping_tile_grid(const Layout& layout, const Layout& home, Tile tile) {
  const Layout homes = tile_grid(home, tile);
  if (!has_whole_rows(layout) || !has_whole_rows(home)) return std::nullopt;
  std::vector<RowPlace> places(static_cast<std::size_t>(layout.shape.rows));
  std::vector<std::int64_t> home_rows, begins{0};
  for (std::size_t rank = 0; rank < home.ranks.size(); ++rank) {
    const std::vector<std::int64_t> rows = rows_of(home.ranks[rank]);
    for (std::size_t row = 0; row < rows.size(); ++row)
      places[static_cast<std::size_t>(rows[row])] = {static_cast<int>(rank), static_cast<std::int64_t>(row)};
    home_rows.push_back(static_cast<std::int64_t>(rows.size()));
    begins.push_back(begins.back() + base::ceil_div(home_rows.back(), tile.rows));
  }
  Layout grid{.shape = homes.shape, .state = layout.state};
  const std::int64_t cols = base::ceil_div(layout.shape.cols, tile.cols);
  for (const LocalLayout& local : layout.ranks) {
    const std::vector<std::int64_t> rows = rows_of(local);
    LocalLayout tiles;
    for (std::size_t begin = 0; begin < rows.size(); begin += static_cast<std::size_t>(tile.rows)) {
      const std::size_t count = std::min(rows.size() - begin, static_cast<std::size_t>(tile.rows));
      const auto place = tile_of(std::span(rows).subspan(begin, count), places, home_rows, tile.rows);
      if (!place) return std::nullopt;
      const std::int64_t row = begins[static_cast<std::size_t>(place->rank)] + place->row;
      if (!tiles.pieces.empty() && tiles.pieces.back().box.row + tiles.pieces.back().box.rows == row)
        ++tiles.pieces.back().box.rows;
      else
        tiles.pieces.push_back(
            {.box = {.row = row, .rows = 1, .col = 0, .cols = cols}, .offset = tiles.size, .stride = cols});
      tiles.size += cols;
    }
    grid.ranks.push_back(std::move(tiles));
  }
  return grid;
}

}  // namespace tessera::layout
