// validate() accepts every layout of the generators, and refuses every layout that a test has damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

#include "dense_reference.h"
#include "random_layouts.h"
#include "tessera/base/error.h"
#include "tessera/layout/layout.h"

namespace tessera::layout {
namespace {

using ::testing::HasSubstr;

// Returns the message of the error, or an empty string for a valid layout.
std::string refusal(const Layout& layout, Cover cover = Cover::any) {
  try {
    validate(layout, cover);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

Layout two_pieces() {
  return {.shape = {8, 4},
          .ranks = {{.pieces = {{{0, 4, 0, 4}, 0, 4}, {{6, 2, 0, 4}, 16, 4}}, .size = 24},
                    {.pieces = {{{4, 2, 0, 4}, 0, 4}}, .size = 8}}};
}

TEST(Validate, NamesRankPieceAndFault) {
  EXPECT_EQ(refusal(two_pieces(), Cover::exact), "");
  const auto broken = [](auto change) {
    Layout layout = two_pieces();
    change(layout);
    return refusal(layout, Cover::exact);
  };
  EXPECT_THAT(broken([](Layout& l) { l.shape.rows = -1; }), HasSubstr("shape -1 x 4"));
  EXPECT_THAT(broken([](Layout& l) { l.ranks[1].size = -8; }), HasSubstr("rank 1 has a buffer of -8"));
  EXPECT_THAT(broken([](Layout& l) { l.ranks[0].pieces[1].box.rows = 0; }), HasSubstr("rank 0 piece 1: 0 x 4"));
  EXPECT_THAT(broken([](Layout& l) { l.ranks[0].pieces[1].box.row = 7; }), HasSubstr("rank 0 piece 1: 2 rows from 7"));
  EXPECT_THAT(broken([](Layout& l) { l.ranks[0].pieces[0].box.col = -1; }), HasSubstr("4 columns from -1"));
  EXPECT_THAT(broken([](Layout& l) { l.ranks[0].pieces[1].stride = 3; }),
              HasSubstr("stride 3, expected at least its 4"));
  EXPECT_THAT(broken([](Layout& l) { l.ranks[0].size = 23; }), HasSubstr("outside the local buffer of 23"));
  EXPECT_THAT(broken([](Layout& l) { l.ranks[0].pieces[0].offset = -1; }), HasSubstr("at offset -1"));
  EXPECT_THAT(broken([](Layout& l) { l.ranks[0].pieces[1].offset = 15; }),
              HasSubstr("rank 0 pieces 0 and 1 share elements of the local buffer (offsets 0 and 15)"));
  EXPECT_THAT(broken([](Layout& l) { std::swap(l.ranks[0].pieces[0], l.ranks[0].pieces[1]); }),
              HasSubstr("rank 0 piece 1 at offset 0 follows a piece at 16"));
  EXPECT_THAT(broken([](Layout& l) { l.ranks[0].pieces[1].box.row = 3; }),
              HasSubstr("rank 0 pieces 0 and 1 both hold rows [3, 4) cols [0, 4)"));
  EXPECT_THAT(broken([](Layout& l) { l.ranks[1].pieces[0].box.row = 3; }),
              HasSubstr("rows [5, 6) cols [0, 4) of 8 x 4 are held by no rank"));
  EXPECT_THAT(broken([](Layout& l) { l.ranks.push_back(l.ranks[1]); }),
              HasSubstr("rows [4, 6) cols [0, 4) are held by ranks 1 and 2"));
  EXPECT_THAT(broken([](Layout& l) { l.ranks.clear(); }), HasSubstr("rows [0, 8) cols [0, 4) of 8 x 4"));
}

TEST(Validate, SurvivesNumbersThatWouldOverflow) {
  const std::int64_t max = std::numeric_limits<std::int64_t>::max(), min = std::numeric_limits<std::int64_t>::min();
  for (const std::int64_t wild : {max, max - 1, min, min + 1}) {
    for (int field = 0; field < 6; ++field) {
      Layout layout = two_pieces();
      Piece& piece = layout.ranks[0].pieces[1];
      std::int64_t* const fields[] = {&piece.box.row,  &piece.box.rows, &piece.box.col,
                                      &piece.box.cols, &piece.offset,   &piece.stride};
      *fields[field] = wild;
      EXPECT_NE(refusal(layout), "") << field << " " << wild;
    }
  }
}

TEST(Validate, ComparesRowsWithTheLargestStride) {
  const std::int64_t max = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t offset : {0, 1, 3, 4}) {
    const Layout layout{.shape = {2, 4},
                        .ranks = {{.pieces = {{{0, 1, 0, 4}, 0, max}, {{1, 1, 0, 4}, offset, max}}, .size = 8}}};
    EXPECT_EQ(refusal(layout).empty(), offset == 4) << offset;
  }
}

TEST(Validate, InterleavedPiecesAreFine) {
  // Accepts two blocks of columns side by side in one local matrix, and one row in the gap of another piece.
  const Layout layout{
      .shape = {3, 6},
      .ranks = {{.pieces = {{{0, 3, 0, 2}, 0, 6}, {{0, 3, 2, 3}, 2, 6}, {{1, 1, 5, 1}, 11, 1}}, .size = 18}}};
  EXPECT_EQ(refusal(layout), "");
}

TEST(Validate, AgreesWithPaintingTheBufferElementByElement) {
  int accepted = 0, refused = 0;
  for (int i = 0; i < testing::iterations(20000); ++i) {
    testing::Random random(static_cast<std::uint64_t>(i));
    // Pieces at random places of the buffer, in half of the layouts with one stride. No logical row is held twice.
    const std::int64_t common = random.between(4, 9);
    Layout layout{.shape = {64, 4}, .ranks = {{.size = 48}}};
    auto& pieces = layout.ranks[0].pieces;
    for (int p = random.small(1, 4); p > 0; --p) {
      const Box box{.row = 16 * p - 16, .rows = random.between(1, 5), .col = 0, .cols = random.between(1, 4)};
      const std::int64_t stride = i % 2 == 0 ? common : box.cols + random.between(0, 5);
      const std::int64_t room = 48 - (box.rows - 1) * stride - box.cols;
      pieces.push_back({.box = box, .offset = random.between(0, room), .stride = stride});
    }
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.offset < b.offset; });
    std::set<std::int64_t> painted;
    std::int64_t elements = 0;
    testing::for_each_element(layout, [&](int, std::int64_t at, std::int64_t, std::int64_t) {
      painted.insert(at);
      ++elements;
    });
    const bool disjoint = static_cast<std::int64_t>(painted.size()) == elements;
    ASSERT_EQ(refusal(layout).empty(), disjoint) << i << "\n" << to_string(layout);
    ++(disjoint ? accepted : refused);
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(refused, 0);
}

TEST(Validate, CoverAgreesWithCountingHolders) {
  int exact = 0, all = 0, none = 0;
  for (int i = 0; i < testing::iterations(4000); ++i) {
    testing::Random random(static_cast<std::uint64_t>(i));
    const Layout layout = testing::random_any(random, testing::random_shape(random), random.small(1, 7));
    ASSERT_EQ(refusal(layout), "") << i << "\n" << to_string(layout);
    const auto holders = testing::holders(layout);
    const bool held = std::all_of(holders.begin(), holders.end(), [](const auto& ranks) { return !ranks.empty(); });
    const bool once = std::all_of(holders.begin(), holders.end(), [](const auto& ranks) { return ranks.size() == 1; });
    ASSERT_EQ(refusal(layout, Cover::all).empty(), held) << i << "\n" << to_string(layout);
    ASSERT_EQ(refusal(layout, Cover::exact).empty(), once) << i << "\n" << to_string(layout);
    ++(once ? exact : held ? all : none);
  }
  EXPECT_GT(exact, 0);
  EXPECT_GT(all, 0);
  EXPECT_GT(none, 0);
}

// Returns the exact layout with one random fault, or nullopt if the layout cannot have the fault.
std::optional<Layout> mutate(testing::Random& random, Layout layout, int kind) {
  std::vector<int> holders;
  for (int rank = 0; rank < layout.size(); ++rank) {
    if (!layout.ranks[rank].pieces.empty()) holders.push_back(rank);
  }
  if (holders.empty()) return std::nullopt;
  const int rank = holders[random.small(0, static_cast<int>(holders.size()) - 1)];
  LocalLayout& local = layout.ranks[rank];
  const int last = static_cast<int>(local.pieces.size()) - 1, index = random.small(0, last);
  Piece& piece = local.pieces[index];
  switch (kind) {
    case 0:
      local.pieces.erase(local.pieces.begin() + index);
      return layout;
    case 1:
      ++piece.box.row;
      return layout;
    case 2:
      --piece.box.col;
      return layout;
    case 3:
      --piece.box.rows;
      return layout;
    case 4:
      ++piece.box.cols;
      return layout;
    case 5:
      piece.stride = piece.box.cols - 1;
      return layout;
    case 6:
      local.pieces.insert(local.pieces.begin() + index, piece);
      return layout;
    case 7:
      piece.offset = local.size;
      return layout;
    case 8:
      local.size = local.pieces[last].offset + local.pieces[last].box.cols - 1;
      return layout;
    case 9:
      if (layout.size() == 1) return std::nullopt;
      layout.ranks[(rank + 1) % layout.size()] = local;
      return layout;
    default:
      if (last == 0) return std::nullopt;
      std::swap(local.pieces.front(), local.pieces.back());
      return layout;
  }
}

TEST(Validate, RefusesEveryMutationOfAnExactLayout) {
  constexpr int kinds = 11;
  std::vector<int> refused(kinds);
  for (int i = 0; i < testing::iterations(6000); ++i) {
    testing::Random random(static_cast<std::uint64_t>(i));
    const Layout layout = testing::random_exact(random, testing::random_shape(random), random.small(1, 6));
    const auto broken = mutate(random, layout, i % kinds);
    if (!broken) continue;
    ASSERT_NE(refusal(*broken, Cover::exact), "") << i << "\n" << to_string(layout) << to_string(*broken);
    ++refused[i % kinds];
  }
  for (int kind = 0; kind < kinds; ++kind) EXPECT_GT(refused[kind], 0) << kind;
}

}  // namespace
}  // namespace tessera::layout
