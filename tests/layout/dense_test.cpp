#include "tessera/layout/dense.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dense_reference.h"
#include "random_layouts.h"
#include "tessera/base/error.h"
#include "tessera/layout/home.h"
#include "tessera/layout/tiles.h"

namespace tessera::layout {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ColumnRanges, AreStoredSideBySideInTheGivenOrder) {
  const Layout layout = cols_by_rank({3, 10}, {{{6, 9}, {0, 2}}, {}, {{2, 4}, {4, 6}, {9, 10}}});
  EXPECT_EQ(layout.ranks[0].pieces, (std::vector<Piece>{{{0, 3, 6, 3}, 0, 5}, {{0, 3, 0, 2}, 3, 5}}));
  EXPECT_EQ(layout.ranks[0].size, 15);
  EXPECT_EQ(layout.ranks[1], LocalLayout{});
  EXPECT_EQ(layout.ranks[2].pieces, (std::vector<Piece>{{{0, 3, 2, 4}, 0, 5}, {{0, 3, 9, 1}, 4, 5}}));
  EXPECT_NO_THROW(validate(layout, Cover::exact));
  EXPECT_EQ(unique_home(layout), layout);
  for (const LocalLayout& local : layout.ranks) EXPECT_TRUE(is_dense(local));
}

TEST(ColumnRanges, WithOneRangePerRankEqualCutCols) {
  EXPECT_EQ(cols_by_rank({3, 10}, {{{0, 4}}, {{4, 10}}}), cut_cols({3, 10}, 2, 2));
}

TEST(ColumnRanges, AreShardedByRowsAsOneMatrix) {
  const Layout storage = cut_local_rows(cols_by_rank({5, 6}, {{{4, 6}, {0, 1}}, {{1, 4}}}), 3);
  EXPECT_EQ(storage.ranks[0].pieces, (std::vector<Piece>{{{0, 2, 4, 2}, 0, 3}, {{0, 2, 0, 1}, 2, 3}}));
  EXPECT_EQ(storage.ranks[4].pieces, (std::vector<Piece>{{{4, 1, 4, 2}, 0, 3}, {{4, 1, 0, 1}, 2, 3}}));
  EXPECT_NO_THROW(validate(storage, Cover::exact));
  // A shard of one row is sharded again. Its pieces are still side by side.
  const Layout again = cut_local_rows(select(storage, {4}), 2);
  EXPECT_EQ(again.ranks[0], storage.ranks[4]);
  EXPECT_EQ(again.ranks[1].size, 0);
}

TEST(ColumnRanges, GatherOverTheRanksThatShardTheirRows) {
  const Layout compute = cols_by_rank({5, 6}, {{{4, 6}, {0, 1}}, {{1, 4}}});
  const Layout storage = select(cut_local_rows(compute, 3), {0, 2, 4}), whole = repeat(select(compute, {0}), 3);
  EXPECT_EQ(recognise(redistribute(storage, whole), storage, whole).kind, CollectiveKind::all_gather);
  EXPECT_EQ(recognise(redistribute_add(whole, storage), whole, storage).kind, CollectiveKind::reduce_scatter);
}

TEST(ColumnRanges, AreOneRunOfLocalColumns) {
  const Layout compute = cols_by_rank({5, 6}, {{{4, 6}, {0, 1}}, {{1, 4}}}), storage = cut_local_rows(compute, 3);
  EXPECT_EQ(with_local_columns(compute.ranks[0]).pieces, (std::vector<Piece>{{{0, 5, 0, 3}, 0, 3}}));
  EXPECT_EQ(with_local_columns(storage.ranks[4]), (LocalLayout{{{{4, 1, 0, 3}, 0, 3}}, 3}));
  EXPECT_EQ(with_local_columns(compute.ranks[1]), compute.ranks[1]) << "one range keeps its columns";
  EXPECT_EQ(with_local_columns({}), LocalLayout{});
}

TEST(ColumnRanges, HaveOneGridOfTiles) {
  const Layout grid = tile_grid(cols_by_rank({5, 9}, {{{6, 9}, {0, 2}}, {{2, 6}}}), {.rows = 2, .cols = 2});
  EXPECT_EQ(grid.ranks[0].pieces, (std::vector<Piece>{{{0, 3, 0, 3}, 0, 3}}));
  EXPECT_EQ(grid.ranks[1].pieces, (std::vector<Piece>{{{3, 3, 0, 2}, 0, 2}}));
}

TEST(ColumnRanges, RefuseInvalidRanges) {
  EXPECT_THAT(
      [&] {
        cols_by_rank({3, 4}, {{{0, 5}}});
      },
      ThrowsMessage<Error>(HasSubstr("rank 0 columns [0, 5), expected a range within [0, 4)")));
  EXPECT_THAT([&] { cols_by_rank({3, 4}, {{{-1, 2}}}); }, ThrowsMessage<Error>(HasSubstr("rank 0 columns [-1, 2)")));
  EXPECT_THAT([&] { cols_by_rank({3, 4}, {{{3, 2}}}); }, ThrowsMessage<Error>(HasSubstr("rank 0 columns [3, 2)")));
  EXPECT_THAT(
      [&] {
        cols_by_rank({3, 4}, {{{0, 2}, {1, 3}}});
      },
      ThrowsMessage<Error>(HasSubstr("rank 0 pieces 0 and 1 both hold rows [0, 3) cols [1, 2)")));
  EXPECT_THAT(
      [&] {
        cols_by_rank({-3, 4}, {{{0, 2}}});
      },
      ThrowsMessage<Error>(HasSubstr("shape -3 x 4, expected no negative extent")));
}

TEST(LocalRow, CountsRowsOfTheLocalMatrix) {
  // Rows 4 to 5, then rows 0 to 2 of columns 4 to 5 beside column 0.
  const LocalLayout local = stack_densely({{{{4, 2, 0, 3}}}, {{{0, 3, 4, 2}, {0, 3, 0, 1}}}});
  EXPECT_EQ(local_row(local, {5, 1, 2, 1}), 1);
  EXPECT_EQ(local_row(local, {0, 3, 0, 1}), 2);
  EXPECT_EQ(local_row(local, {2, 1, 5, 1}), 4);
  EXPECT_EQ(local_row(local, {2, 1, 3, 1}), std::nullopt);
  EXPECT_EQ(local_row({}, {0, 1, 0, 1}), std::nullopt);
}

TEST(DenseMatrix, HasNoPaddingAndOneWidth) {
  const auto dense = [](std::vector<Piece> pieces, std::int64_t size) {
    return is_dense({.pieces = std::move(pieces), .size = size});
  };
  EXPECT_TRUE(dense({}, 0));
  EXPECT_TRUE(dense({{{0, 2, 0, 4}, 0, 4}, {{5, 1, 0, 4}, 8, 4}}, 12));
  EXPECT_TRUE(dense({{{0, 2, 0, 3}, 0, 4}, {{0, 2, 7, 1}, 3, 4}, {{5, 1, 0, 4}, 8, 4}}, 12));
  EXPECT_FALSE(dense({}, 1));
  EXPECT_FALSE(dense({{{0, 2, 0, 4}, 0, 4}}, 9)) << "padding at the end";
  EXPECT_FALSE(dense({{{0, 2, 0, 4}, 1, 4}}, 9)) << "padding at the begin";
  EXPECT_FALSE(dense({{{0, 2, 0, 3}, 0, 4}}, 8)) << "a missing column";
  EXPECT_FALSE(dense({{{0, 1, 0, 4}, 0, 4}, {{1, 1, 0, 3}, 4, 3}}, 7)) << "another width";
  EXPECT_FALSE(dense({{{0, 2, 0, 3}, 0, 4}, {{1, 2, 7, 1}, 3, 4}}, 8)) << "other rows beside";
  EXPECT_FALSE(dense({{{0, 2, 0, 3}, 0, 4}, {{0, 2, 7, 2}, 3, 4}}, 8)) << "a row that is too long";
}

// After repeated sharding, the rows of all local matrices are the rows of the whole matrix.
TEST(DenseMatrix, ShardsOfColumnRangesAreRowsOfTheMatrix) {
  for (int i = 0; i < testing::iterations(500); ++i) {
    testing::Random random(static_cast<std::uint64_t>(i));
    const Shape shape{.rows = random.between(1, 9), .cols = random.between(1, 9)};
    std::vector<Range> ranges;
    for (std::int64_t col = 0; col < shape.cols;) {
      const Range range{col, std::min(shape.cols, col + random.between(1, 3))};
      if (!random.one_in(3)) ranges.push_back(range);
      col = range.end;
    }
    random.shuffle(ranges);
    const Layout layout = cols_by_rank(shape, {ranges});
    std::vector<std::pair<std::int64_t, std::int64_t>> whole(static_cast<std::size_t>(layout.ranks[0].size)), parts;
    testing::for_each_element(layout, [&](int, std::int64_t at, std::int64_t row, std::int64_t col) {
      whole[static_cast<std::size_t>(at)] = {row, col};
    });
    const int inner = random.small(1, 4), again = random.small(1, 3);
    const Layout cut = cut_local_rows(layout, inner);
    for (int part = 0; part < inner; ++part) {
      const Layout twice = cut_local_rows(select(cut, {part}), again);
      for (int rank = 0; rank < again; ++rank) {
        std::vector<std::pair<std::int64_t, std::int64_t>> own(
            static_cast<std::size_t>(twice.ranks[static_cast<std::size_t>(rank)].size));
        testing::for_each_element(select(twice, {rank}), [&](int, std::int64_t at, std::int64_t row, std::int64_t col) {
          own[static_cast<std::size_t>(at)] = {row, col};
        });
        parts.insert(parts.end(), own.begin(), own.end());
      }
    }
    ASSERT_EQ(parts, whole) << i;
  }
}

}  // namespace
}  // namespace tessera::layout
