// Tests how the work of a MasterCast is divided for a GPU, and the guarantees for the part of a thread.
#include "tessera/quant/masters/master_cast_plan.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tessera/base/error.h"
#include "tests/quant/matrices.h"
#include "tests/quant/slices.h"

namespace tessera::quant {
namespace {

const Extent kPlanMatrices[] = {{1, 16}, {5, 80}, {17, 288}, {300, 688}, {129, 4096}, {3, 14}, {130, 130}};

// Checks every element of a part of kWarpRows x kVector.
void check_walk(const Tiling& tiling, Extent matrix, std::int64_t first_row, std::int64_t first_col) {
  const std::int64_t tile = tiling.tile_of(first_row, first_col);
  for (std::int64_t row = first_row; row < std::min(first_row + kWarpRows, matrix.rows); ++row)
    for (std::int64_t col = first_col; col < std::min(first_col + kVector, matrix.cols); ++col) {
      const std::int64_t own = tiling.tile_of(row, col);
      ASSERT_TRUE(tiling.walk != Walk::band || own == tile);
      ASSERT_TRUE(tiling.walk != Walk::row || own == tiling.tile_of(row, first_col));
      ASSERT_TRUE(tiling.walk != Walk::column || own == tile + col - first_col);
    }
  // Lanes that share a tile.
  if (tiling.walk != Walk::band && tiling.walk != Walk::row) return;
  const std::int64_t leader = first_col / kVector / tiling.lanes * tiling.lanes * kVector;
  ASSERT_EQ(tiling.tile_of(first_row, leader), tile);
}

TEST(Tiling, PartsOfThreadsMatchTheirWalk) {
  std::vector<ScaleTile> tiles{{16, 8}, {32, 48}, {3, 16}, {2, 2}, {16, 1}, {7, 1}, {48, 24}};
  for (const NamedEncoding& named : all_encodings()) tiles.push_back(named.encoding.tile);
  for (const Extent& matrix : kPlanMatrices)
    for (const ScaleTile& tile : tiles) {
      const Tiling tiling(tile, matrix);
      for (std::int64_t row = 0; row < matrix.rows; row += kWarpRows)
        for (std::int64_t col = 0; col < matrix.cols; col += kVector) check_walk(tiling, matrix, row, col);
    }
}

TEST(Tiling, KnownTilesHaveAFastWalk) {
  const Extent matrix{.rows = 300, .cols = 688};
  for (const NamedEncoding& named : all_encodings()) EXPECT_NE(Tiling(named.encoding.tile, matrix).walk, Walk::any);
  EXPECT_EQ(Tiling({128, 128}, matrix).lanes, 16);
  EXPECT_EQ(Tiling({1, 32}, matrix).lanes, 4);
  EXPECT_EQ(Tiling({16, 16}, matrix).lanes, 2);
  EXPECT_EQ(Tiling({0, 0}, matrix).lanes, 32);
}

// Returns the elements of a slice that the pieces contain. An element is listed once for each piece that contains it.
std::multiset<std::int64_t> elements_of(const MasterCastPlan& plan, std::size_t number) {
  const MasterItem& item = plan.items[number];
  std::multiset<std::int64_t> elements;
  for (std::size_t piece = 0; piece < plan.item_of_piece.size(); ++piece) {
    if (plan.item_of_piece[piece] != static_cast<std::int32_t>(number)) continue;
    const std::int64_t own = static_cast<std::int64_t>(piece) - item.first_piece;
    const std::int64_t row = item.first_row + own / item.pieces_across * kPieceRows;
    const std::int64_t col = own % item.pieces_across * kPieceCols;
    for (std::int64_t r = row; r < std::min(row + kPieceRows, item.slice.matrix.rows); ++r)
      for (std::int64_t c = col; c < std::min(col + kPieceCols, item.slice.matrix.cols); ++c) {
        const std::int64_t at = r * item.slice.matrix.cols + c;
        if (at >= item.slice.slice.begin && at < item.slice.slice.end) elements.insert(at);
      }
  }
  return elements;
}

TEST(MasterCastPlan, PiecesContainEveryElementOfASliceOnce) {
  std::mt19937 random(5);
  std::vector<MasterSlice> slices;
  for (const Extent& matrix : kPlanMatrices)
    for (const Slice& slice : random_slices(matrix.elements(), 5, random))
      slices.push_back({.matrix = matrix, .encoding = all_encodings()[2].encoding, .slice = slice});
  const MasterCastPlan plan = plan_master_cast(slices);
  for (std::size_t i = 0; i < slices.size(); ++i) {
    std::multiset<std::int64_t> expected;
    for (std::int64_t at = slices[i].slice.begin; at < slices[i].slice.end; ++at) expected.insert(at);
    ASSERT_EQ(elements_of(plan, i), expected) << "slice " << i;
  }
}

TEST(MasterCastPlan, ScalesAreComputedForTouchedAndStoredTiles) {
  const Encoding encoding{.element = Element::e2m1, .scale = Scale::e4m3, .tile = {16, 16}};
  const Extent matrix{.rows = 64, .cols = 64};
  const auto made = [&](Slice slice, Slice tiles) {
    const MasterSlice one{.matrix = matrix, .encoding = encoding, .slice = slice, .tiles = tiles};
    return plan_master_cast({&one, 1}).items[0].made_tiles;
  };
  const auto is = [](Slice slice, std::int64_t begin, std::int64_t end) {
    return slice.begin == begin && slice.end == end;
  };
  EXPECT_TRUE(is(made({1000, 1030}, {}), 0, 8));
  EXPECT_TRUE(is(made({1000, 1030}, {10, 12}), 0, 12));
  EXPECT_TRUE(is(made({5, 5}, {10, 12}), 10, 12));
  EXPECT_EQ(made({5, 5}, {}).size(), 0);
}

TEST(MasterCastPlan, RejectsSlicesOutsideTheMatrix) {
  const Encoding encoding = all_encodings()[7].encoding;
  const auto plan = [&](Extent matrix, Slice slice, Slice tiles, DType type = DType::fp32) {
    const MasterSlice one{
        .source = {nullptr, type}, .matrix = matrix, .encoding = encoding, .slice = slice, .tiles = tiles};
    plan_master_cast({&one, 1});
  };
  EXPECT_NO_THROW(plan({16, 16}, {0, 256}, {0, 1}));
  EXPECT_THROW(plan({16, 16}, {0, 257}, {0, 1}), Error);
  EXPECT_THROW(plan({16, 16}, {-1, 4}, {0, 1}), Error);
  EXPECT_THROW(plan({16, 16}, {9, 4}, {0, 1}), Error);
  EXPECT_THROW(plan({16, 16}, {0, 4}, {0, 2}), Error);
  EXPECT_THROW(plan({16, 15}, {0, 4}, {0, 1}), Error);
  EXPECT_THROW(plan({16, 16}, {0, 4}, {0, 1}, DType::fp64), Error);
}

}  // namespace
}  // namespace tessera::quant
