#include "tessera/layout/tiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "random_layouts.h"
#include "tessera/base/error.h"
#include "tessera/layout/home.h"

namespace tessera::layout {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(TileGrid, WithTilesOfOneElementIsTheLayoutItself) {
  const Layout layout = cut_rows({7, 5}, {{"a", 3}, {"b", 4}}, 2);
  EXPECT_EQ(tile_grid(layout, {}), layout);
}

TEST(TileGrid, CountsTilesOfEachRanksDensePart) {
  // Rank 0 has 1 + 2 rows and rank 1 has 2 + 2 rows. Each rank has two pieces, which the grid of tiles treats as one
  // matrix.
  const Layout grid = tile_grid(cut_rows({7, 5}, {{"a", 3}, {"b", 4}}, 2), {.rows = 2, .cols = 4});
  EXPECT_EQ(grid.shape, (Shape{4, 2}));
  ASSERT_EQ(grid.size(), 2);
  EXPECT_EQ(grid.ranks[0].pieces, (std::vector<Piece>{{.box = {0, 2, 0, 2}, .offset = 0, .stride = 2}}));
  EXPECT_EQ(grid.ranks[1].pieces, (std::vector<Piece>{{.box = {2, 2, 0, 2}, .offset = 0, .stride = 2}}));
  validate(grid, Cover::exact);
}

TEST(TileGrid, RanksMayHaveDifferentWidthsOrBeEmpty) {
  const Layout grid = tile_grid(cut_cols({3, 5}, 8), {.rows = 2, .cols = 2});
  ASSERT_EQ(grid.size(), 8);
  for (const LocalLayout& local : grid.ranks) EXPECT_TRUE(local.size == 0 || local.size == 2);
  EXPECT_EQ(grid.shape.rows, 2 * 5);  // two rows of tiles for each of the five ranks that have a column
  validate(grid);
}

// The grid of a shard equals the shard of the grid, if the matrix is cut between tiles. Therefore the data and the
// scales of a shard are on the same rank.
TEST(TileGrid, CommutesWithSharding) {
  for (const std::int64_t rows : {0, 1, 5, 16, 33, 100})
    for (const std::int64_t tile_rows : {1, 2, 3, 16})
      for (const std::int64_t together : {1, 2, 3})
        for (int tp = 1; tp <= 3; ++tp)
          for (int gtp = 1; gtp <= 4; ++gtp) {
            const Layout home = cut_rows({rows, 7}, {{"a", rows / 3}, {"b", rows - rows / 3}}, tp);
            const Tile tile{.rows = tile_rows, .cols = 4};
            const std::int64_t align = tile_rows * together;
            const Layout of_cut = tile_grid(cut_local_rows(home, gtp, align), tile);
            const Layout cut_grid = cut_local_rows(tile_grid(home, tile), gtp, together);
            ASSERT_EQ(of_cut.size(), cut_grid.size());
            for (std::size_t rank = 0; rank < of_cut.ranks.size(); ++rank)
              EXPECT_EQ(of_cut.ranks[rank].size, cut_grid.ranks[rank].size)
                  << rows << " rows, tile " << tile_rows << ", together " << together << ", tp " << tp << ", gtp "
                  << gtp;
          }
}

// A stack of `matrices` matrices of `rows` rows and three columns, of which each rank has some.
struct Stack {
  std::int64_t rows = 0, matrices = 0;
  Tile tile;
  RowUnits units() const { return {.rows = tile.rows * together, .matrix_rows = rows}; }
  std::int64_t together = 1;

  // The tiles in a range of rows, if each matrix is divided into tiles alone and the range begins and ends between
  // tiles.
  std::int64_t tiles_in(Range range) const {
    std::int64_t tiles = 0;
    for (std::int64_t matrix = 0; matrix < matrices; ++matrix)
      for (std::int64_t row = 0; row < rows; row += tile.rows) {
        const std::int64_t begin = matrix * rows + row, end = matrix * rows + std::min(row + tile.rows, rows);
        if (begin >= range.begin && end <= range.end) ++tiles;
        EXPECT_TRUE(end <= range.begin || begin >= range.end || (begin >= range.begin && end <= range.end))
            << "a cut inside the tile of rows " << begin << " to " << end;
      }
    return tiles;
  }
};

Stack random_stack(Random& random) {
  return {.rows = random.between(1, 40),
          .matrices = random.between(0, 7),
          .tile = {.rows = random.between(1, 20), .cols = 2},
          .together = random.between(1, 3)};
}

// A shard of the data and a shard of the grid of tiles describe the same tiles, also if the shard is cut again.
TEST(StackOfMatrices, IsCutBetweenTilesOfEachMatrix) {
  Random random(20261129);
  for (int repetition = 0; repetition < 3000; ++repetition) {
    const Stack stack = random_stack(random);
    const Layout whole = replicated({stack.rows * stack.matrices, 3}, 1);
    const std::int64_t heights[] = {stack.rows};
    const Layout grid = tile_grid(whole, stack.tile, heights);
    const int count = random.small(1, 9), again = random.small(1, 4);
    const RowUnits of_grid = units_of_tiles(stack.units(), stack.tile.rows);
    const Layout shards = cut_local_rows(whole, count, stack.units()), tiles = cut_local_rows(grid, count, of_grid);
    std::int64_t next = 0;
    for (int part = 0; part < count; ++part) {
      const Range rows = unit_part({0, stack.rows * stack.matrices}, stack.units(), part, count);
      ASSERT_EQ(rows.begin, next);
      next = rows.end;
      ASSERT_EQ(shards.ranks[part].size, rows.size() * 3);
      ASSERT_EQ(tiles.ranks[part].size, stack.tiles_in(rows) * 2) << stack.rows << " rows, tile " << stack.tile.rows;
      const Range grid_rows = unit_part({0, grid.shape.rows}, of_grid, part, count);
      for (int inner = 0; inner < again; ++inner)
        ASSERT_EQ(unit_part(grid_rows, of_grid, inner, again).size(),
                  stack.tiles_in(unit_part(rows, stack.units(), inner, again)));
    }
    ASSERT_EQ(next, stack.rows * stack.matrices);
  }
}

TEST(StackOfMatrices, OfOneMatrixIsCutLikeRows) {
  Random random(7);
  for (int repetition = 0; repetition < 500; ++repetition) {
    const std::int64_t rows = random.between(0, 50), align = random.between(1, 9);
    const int count = random.small(1, 6);
    const Layout whole = replicated({rows, 2}, 1);
    ASSERT_EQ(cut_local_rows(whole, count, {.rows = align, .matrix_rows = std::max<std::int64_t>(rows, 1)}),
              cut_local_rows(whole, count, align));
    ASSERT_EQ(cut_local_rows(whole, count, {.matrix_rows = 1}), cut_local_rows(whole, count));
  }
}

TEST(StackOfMatrices, RefusesPartsOfMatricesAndCutsInsideUnits) {
  const std::int64_t heights[] = {4};
  EXPECT_THAT(
      [&] {
        tile_grid(replicated({10, 2}, 1), {.rows = 2}, heights);
      },
      ThrowsMessage<Error>(HasSubstr("a part has 10 rows, expected a multiple of 4")));
  EXPECT_THAT(
      [] {
        unit_part({1, 8}, {.rows = 2, .matrix_rows = 4}, 0, 2);
      },
      ThrowsMessage<Error>(HasSubstr("row 1 is inside a unit of 2 rows")));
  EXPECT_THAT(
      [] {
        unit_part({0, 8}, {.rows = 0, .matrix_rows = 4}, 0, 2);
      },
      ThrowsMessage<Error>(HasSubstr("units of 0 rows")));
}

// Two ranks have different rows and share four rows, which the first rank stores.
TEST(OverlappingTileGrid, FindsTheTilesOfTheHomeLayout) {
  const Layout layout = rows_by_rank({12, 16}, {{{0, 4}, {8, 12}}, {{4, 8}, {8, 12}}}), home = unique_home(layout);
  const std::optional<Layout> grid = overlapping_tile_grid(layout, home, {.rows = 4, .cols = 8});
  ASSERT_TRUE(grid);
  EXPECT_EQ(grid->shape, (Shape{3, 2}));
  EXPECT_EQ(grid->ranks[0].pieces, (std::vector<Piece>{{.box = {0, 2, 0, 2}, .offset = 0, .stride = 2}}));
  EXPECT_EQ(grid->ranks[1].pieces, (std::vector<Piece>{{.box = {2, 1, 0, 2}, .offset = 0, .stride = 2},
                                                       {.box = {1, 1, 0, 2}, .offset = 2, .stride = 2}}));
  EXPECT_EQ(unique_home(*grid), unique_home(tile_grid(home, {.rows = 4, .cols = 8})));
  validate(*grid);
}

TEST(OverlappingTileGrid, EqualsTheHomeGridWithoutOverlap) {
  const Layout layout = cut_rows({23, 9}, {{"a", 11}, {"b", 12}}, 3);
  for (const std::int64_t rows : {1, 2, 3, 5})
    EXPECT_EQ(overlapping_tile_grid(layout, layout, {.rows = rows, .cols = 4}),
              tile_grid(layout, {.rows = rows, .cols = 4}));
}

TEST(OverlappingTileGrid, DoesNotExistIfPartsMeetInsideATile) {
  const Layout layout = rows_by_rank({12, 8}, {{{0, 4}, {8, 12}}, {{4, 8}, {8, 12}}}), home = unique_home(layout);
  EXPECT_FALSE(overlapping_tile_grid(layout, home, {.rows = 3, .cols = 8}));  // begins inside a tile
  EXPECT_FALSE(overlapping_tile_grid(layout, home, {.rows = 8, .cols = 8}));
  const Layout shorter = rows_by_rank({6, 8}, {{{0, 4}}, {{0, 3}, {4, 6}}});
  EXPECT_FALSE(overlapping_tile_grid(shorter, unique_home(shorter), {.rows = 4, .cols = 8}));  // ends inside a tile
  // Has as many rows as a tile, but the rows are from two tiles.
  const Layout inside = rows_by_rank({12, 8}, {{{0, 8}}, {{2, 6}, {8, 12}}});
  EXPECT_FALSE(overlapping_tile_grid(inside, unique_home(inside), {.rows = 4, .cols = 8}));
  const Layout part = rows_by_rank({8, 8}, {{{0, 4}}, {{4, 8}, {0, 3}}});  // contains only the first rows of a tile
  EXPECT_FALSE(overlapping_tile_grid(part, unique_home(part), {.rows = 4, .cols = 8}));
  const Layout columns = cut_cols({4, 8}, 2);
  EXPECT_FALSE(overlapping_tile_grid(columns, columns, {.rows = 2, .cols = 2}));
}

// Tiles of one row begin at every row, so parts may begin at any row.
TEST(OverlappingTileGrid, AlwaysExistsForTilesOfOneRow) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    std::vector<std::vector<Range>> parts;
    for (std::int64_t rank = 0; rank < ranks; ++rank) parts.push_back({{rank * 3, rank * 3 + 5}, {20, 22}, {19, 20}});
    const Layout layout = rows_by_rank({22, 10}, parts), home = unique_home(layout);
    const std::optional<Layout> grid = overlapping_tile_grid(layout, home, {.cols = 4});
    ASSERT_TRUE(grid) << ranks;
    for (std::size_t rank = 0; rank < parts.size(); ++rank) EXPECT_EQ(grid->ranks[rank].size, 8 * 3);
  }
}

TEST(TileGrid, RefusesInvalidTilesAndLayouts) {
  EXPECT_THAT(
      [&] {
        tile_grid(replicated({4, 4}, 1), {.rows = 0, .cols = 1});
      },
      ThrowsMessage<Error>(HasSubstr("a tile of 0 x 1, expected at least 1 x 1")));
  EXPECT_THAT(
      [&] {
        tile_grid(replicated({4, 4}, 1), {.rows = 1, .cols = -1});
      },
      ThrowsMessage<Error>(HasSubstr("a tile of 1 x -1")));
  Layout ragged{.shape = {4, 4}};
  ragged.ranks.push_back(
      {.pieces = {{.box = {0, 1, 0, 2}, .offset = 0, .stride = 2}, {.box = {1, 1, 0, 3}, .offset = 2, .stride = 3}},
       .size = 5});
  EXPECT_THAT([&] { tile_grid(ragged, {.rows = 2, .cols = 2}); }, ThrowsMessage<Error>(HasSubstr("columns, expected")));
}

}  // namespace
}  // namespace tessera::layout
