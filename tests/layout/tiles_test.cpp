#include "tessera/layout/tiles.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::layout {
namespace {

TEST(TileGrid, OfOneElementIsTheLayoutItself) {
  const Layout layout = cut_rows({7, 5}, {{"a", 3}, {"b", 4}}, 2);
  EXPECT_EQ(tile_grid(layout, {}), layout);
}

TEST(TileGrid, CountsTilesOfEachRanksDensePart) {
  // Rank 0 has 1 + 2 rows, rank 1 has 2 + 2: two pieces each, which tiles take as one matrix.
  const Layout grid = tile_grid(cut_rows({7, 5}, {{"a", 3}, {"b", 4}}, 2), {.rows = 2, .cols = 4});
  EXPECT_EQ(grid.shape, (Shape{4, 2}));
  ASSERT_EQ(grid.size(), 2);
  EXPECT_EQ(grid.ranks[0].pieces, (std::vector<Piece>{{.box = {0, 2, 0, 2}, .offset = 0, .stride = 2}}));
  EXPECT_EQ(grid.ranks[1].pieces, (std::vector<Piece>{{.box = {2, 2, 0, 2}, .offset = 0, .stride = 2}}));
  validate(grid, Cover::exact);
}

TEST(TileGrid, RanksMayHaveOtherWidthsOrNothing) {
  const Layout grid = tile_grid(cut_cols({3, 5}, 8), {.rows = 2, .cols = 2});
  ASSERT_EQ(grid.size(), 8);
  for (const LocalLayout& local : grid.ranks) EXPECT_TRUE(local.size == 0 || local.size == 2);
  EXPECT_EQ(grid.shape.rows, 2 * 5);  // of the five ranks that have a column
  validate(grid);
}

// Cutting between tiles and laying a grid commute: data and scales of a shard belong together.
TEST(TileGrid, OfACutIsACutOfTheGrid) {
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

TEST(TileGrid, RefusesWhatIsNoTileOrNoMatrix) {
  EXPECT_THROW(tile_grid(replicated({4, 4}, 1), {.rows = 0, .cols = 1}), Error);
  EXPECT_THROW(tile_grid(replicated({4, 4}, 1), {.rows = 1, .cols = -1}), Error);
  Layout ragged{.shape = {4, 4}};
  ragged.ranks.push_back(
      {.pieces = {{.box = {0, 1, 0, 2}, .offset = 0, .stride = 2}, {.box = {1, 1, 0, 3}, .offset = 2, .stride = 3}},
       .size = 5});
  EXPECT_THROW(tile_grid(ragged, {.rows = 2, .cols = 2}), Error);
}

}  // namespace
}  // namespace tessera::layout
