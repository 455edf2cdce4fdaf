#include "tessera/layout/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "dense_reference.h"
#include "random_layouts.h"
#include "tessera/base/error.h"

namespace tessera::layout {
namespace {

using ::testing::HasSubstr;

// Expects that `body` throws an Error whose message contains `part`.
void expect_error(const std::function<void()>& body, const std::string& part) {
  try {
    body();
    ADD_FAILURE() << "expected an error with: " << part;
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
}

// Logical rows in local order; every piece is dense and as wide as the matrix or the cut says.
std::vector<std::int64_t> rows_of(const LocalLayout& local) {
  std::vector<std::int64_t> rows;
  for (const Piece& piece : local.pieces) {
    EXPECT_EQ(piece.stride, piece.box.cols);
    EXPECT_EQ(piece.offset, static_cast<std::int64_t>(rows.size()) * piece.box.cols);
    for (std::int64_t row = 0; row < piece.box.rows; ++row) rows.push_back(piece.box.row + row);
  }
  return rows;
}
using Rows = std::vector<std::int64_t>;

TEST(Parts, EvenPartsCoverAllAndDifferByAtMostOne) {
  for (std::int64_t n = 0; n < 40; ++n) {
    for (int count = 1; count < 12; ++count) {
      std::int64_t next = 0;
      for (int i = 0; i < count; ++i) {
        const Range part = even_part(n, i, count);
        ASSERT_EQ(part.begin, next);
        ASSERT_EQ(part.begin, n * i / count);
        ASSERT_GE(part.size(), n / count);
        ASSERT_LE(part.size(), (n + count - 1) / count);
        next = part.end;
      }
      ASSERT_EQ(next, n);
    }
  }
  const std::int64_t large = std::int64_t{1} << 62;
  EXPECT_EQ(even_part(large, 4095, 4096).end, large);
}

TEST(Parts, CeilPartsAreAlignedAndTheLastAreSmaller) {
  for (std::int64_t n = 0; n < 40; ++n) {
    for (int count = 1; count < 12; ++count) {
      for (std::int64_t align : {1, 2, 3, 16}) {
        std::int64_t next = 0, size = 0;
        for (int i = 0; i < count; ++i) {
          const Range part = ceil_part(n, i, count, align);
          if (i == 0) size = part.size();
          ASSERT_EQ(part.begin, next);
          ASSERT_TRUE(part.end == n || part.size() == size);
          ASSERT_TRUE(part.end == n || part.end % align == 0);
          ASSERT_LE(part.size(), size);
          next = part.end;
        }
        ASSERT_EQ(next, n);
        ASSERT_LE(size, ((n + count - 1) / count + align - 1) / align * align);
      }
    }
  }
}

TEST(Parts, RefuseInvalidArguments) {
  expect_error([] { even_part(-1, 0, 2); }, "even_part: -1 elements");
  expect_error([] { even_part(4, 2, 2); }, "part 2, expected [0, 2)");
  expect_error([] { even_part(4, -1, 2); }, "part -1");
  expect_error([] { even_part(4, 0, 0); }, "0 parts");
  expect_error([] { ceil_part(4, 0, 2, 0); }, "alignment 0");
  expect_error([] { ceil_part(4, 3, 3); }, "ceil_part: part 3");
}

TEST(Cuts, GateAndUpAreShardedSeparately) {
  const Layout layout = cut_rows({16, 3}, {{"gate", 8}, {"up", 8}}, 2);
  EXPECT_EQ(rows_of(layout.ranks[0]), (Rows{0, 1, 2, 3, 8, 9, 10, 11}));
  EXPECT_EQ(rows_of(layout.ranks[1]), (Rows{4, 5, 6, 7, 12, 13, 14, 15}));
  EXPECT_EQ(layout.ranks[0].size, 24);
  EXPECT_EQ(layout.ranks[0].pieces.size(), 2u);
}

TEST(Cuts, HeadsStayWholeIfTheyDoNotDivideEvenly) {
  // Three heads of two rows over two ranks: one, then two.
  const Layout layout = cut_rows({10, 1}, {{"q", 6, 2}, {"k", 2, 2}, {"v", 2, 2}}, 2);
  EXPECT_EQ(rows_of(layout.ranks[0]), (Rows{0, 1}));
  EXPECT_EQ(rows_of(layout.ranks[1]), (Rows{2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(layout.ranks[1].pieces.size(), 1u) << "q, k and v of rank 1 are stacked without gaps";
}

TEST(Cuts, WithMoreRanksThanUnitsSomeRanksAreEmpty) {
  const Layout layout = cut_rows({4, 2}, {{"heads", 4, 2}}, 4);
  EXPECT_TRUE(layout.ranks[0].pieces.empty());
  EXPECT_EQ(rows_of(layout.ranks[1]), (Rows{0, 1}));
  EXPECT_EQ(layout.ranks[2].size, 0);
  EXPECT_EQ(rows_of(layout.ranks[3]), (Rows{2, 3}));
}

TEST(Cuts, ColumnsAreDense) {
  const Layout layout = cut_cols({3, 10}, 2, 2);
  EXPECT_EQ(layout.ranks[0].pieces, (std::vector<Piece>{{{0, 3, 0, 4}, 0, 4}}));
  EXPECT_EQ(layout.ranks[1].pieces, (std::vector<Piece>{{{0, 3, 4, 6}, 0, 6}}));
  EXPECT_EQ(layout.ranks[1].size, 18);
}

TEST(Cuts, RowsByRankKeepTheirOrderAndMayOverlap) {
  const Layout layout = rows_by_rank({8, 2}, {{{0, 2}, {4, 6}}, {{6, 8}, {4, 5}}, {}});
  EXPECT_EQ(rows_of(layout.ranks[0]), (Rows{0, 1, 4, 5}));
  EXPECT_EQ(rows_of(layout.ranks[1]), (Rows{6, 7, 4}));
  EXPECT_EQ(layout.ranks[2].size, 0);
}

TEST(Cuts, TpThenGtpOfStackedWeight) {
  const Layout tp = cut_rows({20, 2}, {{"gate", 10}, {"up", 10}}, 2);
  const Layout storage = cut_local_rows(tp, 3);  // 10 local rows: 4, 4, 2
  ASSERT_EQ(storage.size(), 6);
  EXPECT_EQ(rows_of(storage.ranks[0]), (Rows{0, 1, 2, 3}));     // tp 0, gtp 0
  EXPECT_EQ(rows_of(storage.ranks[1]), (Rows{5, 6, 7, 8}));     // tp 1, gtp 0
  EXPECT_EQ(rows_of(storage.ranks[2]), (Rows{4, 10, 11, 12}));  // tp 0, gtp 1
  EXPECT_EQ(rows_of(storage.ranks[5]), (Rows{18, 19}));         // tp 1, gtp 2
  EXPECT_EQ(storage.ranks[5].size, 4);
  const Layout padded = cut_local_rows(tp, 3, 1, true);
  EXPECT_EQ(rows_of(padded.ranks[5]), (Rows{18, 19}));
  for (const LocalLayout& local : padded.ranks) EXPECT_EQ(local.size, 8);
}

TEST(Cuts, AlignedLocalRowsLeaveTheLastRanksEmpty) {
  const Layout storage = cut_local_rows(replicated({20, 1}, 1), 4, 16);
  EXPECT_EQ(storage.ranks[0].size, 16);
  EXPECT_EQ(storage.ranks[1].size, 4);
  EXPECT_EQ(storage.ranks[2].size, 0);
  EXPECT_TRUE(storage.ranks[3].pieces.empty());
  EXPECT_EQ(cut_local_rows(replicated({20, 1}, 1), 4, 16, true).ranks[3].size, 16);
}

TEST(Cuts, ColumnsThenLocalRows) {
  const Layout storage = cut_local_rows(cut_cols({4, 6}, 2), 2);
  EXPECT_EQ(storage.ranks[3].pieces, (std::vector<Piece>{{{2, 2, 3, 3}, 0, 3}}));
  EXPECT_NO_THROW(validate(storage, Cover::exact));
}

TEST(Cuts, LocalRowsIgnorePaddingOfTheOuterLayout) {
  const Layout outer = cut_local_rows(replicated({5, 2}, 1), 2, 1, true);  // 3 rows, 2 and padding
  const Layout inner = cut_local_rows(outer, 2);
  EXPECT_EQ(rows_of(inner.ranks[1]), (Rows{3}));
  EXPECT_EQ(rows_of(inner.ranks[3]), (Rows{4}));
}

TEST(Cuts, RepeatAndSelectKeepTheOrderOfRanks) {
  const Layout tp = cut_rows({4, 1}, {{"all", 4}}, 2);
  const Layout copies = repeat(tp, 2);
  EXPECT_EQ(copies.ranks, (std::vector<LocalLayout>{tp.ranks[0], tp.ranks[1], tp.ranks[0], tp.ranks[1]}));
  EXPECT_EQ(select(copies, {3, 0}).ranks, (std::vector<LocalLayout>{tp.ranks[1], tp.ranks[0]}));
}

TEST(Cuts, RefuseInvalidArguments) {
  expect_error([] { replicated({4, 4}, 0); }, "replicated: 0 ranks");
  expect_error([] { replicated({-4, 4}, 1); }, "shape -4 x 4");
  expect_error([] { cut_rows({4, 4}, {{"a", 3}}, 2); }, "the blocks have 3 rows, expected the shape's 4");
  expect_error([] { cut_rows({4, 4}, {{"heads", 4, 3}}, 2); }, "block 'heads' has 4 rows in units of 3");
  expect_error([] { cut_rows({4, 4}, {{"heads", 4, 0}}, 2); }, "units of 0");
  expect_error([] { cut_cols({4, 5}, 2, 2); }, "5 columns in units of 2");
  expect_error(
      [] {
        rows_by_rank({4, 4}, {{{0, 2}}, {{1, 5}}});
      },
      "rank 1 rows [1, 5), expected a range within [0, 4)");
  expect_error([] { rows_by_rank({4, 4}, {{{3, 1}}}); }, "rank 0 rows [3, 1)");
  expect_error([] { rows_by_rank({4, 4}, {{{0, 2}, {1, 3}}}); }, "rank 0 pieces 0 and 1 both hold rows [1, 2)");
  expect_error([] { select(replicated({4, 4}, 2), {2}); }, "rank 2, expected [0, 2)");
  expect_error([] { select(replicated({4, 4}, 2), {1, 1}); }, "rank 1 is listed twice");
  expect_error([] { repeat(replicated({4, 4}, 2), 0); }, "repeat: 0 ranks");
  expect_error([] { cut_local_rows(replicated({4, 4}, 1), 0); }, "cut_local_rows: 0 ranks");
  expect_error([] { cut_local_rows(replicated({4, 4}, 1), 2, 0); }, "units of 0 rows");
  Layout uneven{.shape = {2, 4}, .ranks = {{.pieces = {{{0, 1, 0, 4}, 0, 4}, {{1, 1, 0, 3}, 4, 3}}, .size = 7}}};
  expect_error([&] { cut_local_rows(uneven, 2); }, "rank 0: the rows from 1 have 3 columns, expected 4");
}

TEST(Cuts, TextHasOneLinePerRank) {
  const Layout layout = cut_rows({5, 8}, {{"gate", 3}, {"up", 2}}, 2);
  EXPECT_EQ(to_string(layout),
            "rank 0: rows [0, 1) cols [0, 8) at 0; rows [3, 4) cols [0, 8) at 8 of 16\n"
            "rank 1: rows [1, 3) cols [0, 8) at 0; rows [4, 5) cols [0, 8) at 16 of 24\n");
  EXPECT_EQ(to_string(cut_rows({1, 8}, {{"all", 1}}, 2)),
            "rank 0: nothing of 0\nrank 1: rows [0, 1) cols [0, 8) at 0 of 8\n");
  const Layout strided{.shape = {2, 3}, .ranks = {{.pieces = {{{0, 2, 0, 3}, 1, 5}}, .size = 9}}};
  EXPECT_EQ(to_string(strided), "rank 0: rows [0, 2) cols [0, 3) at 1 stride 5 of 9\n");
}

TEST(Cuts, RandomExactLayoutsPartitionTheTensor) {
  for (int i = 0; i < testing::iterations(4000); ++i) {
    testing::Random random(static_cast<std::uint64_t>(i));
    const Layout layout = testing::random_exact(random, testing::random_shape(random), random.small(1, 9));
    ASSERT_NO_THROW(validate(layout, Cover::exact)) << i << "\n" << to_string(layout);
    for (const auto& ranks : testing::holders(layout)) ASSERT_EQ(ranks.size(), 1u) << i;
  }
}

// The local rows of the inner shards, one after the other, are the local rows of the outer layout.
TEST(Cuts, RandomNestedCutsStackBackToTheOuterLayout) {
  for (int i = 0; i < testing::iterations(2000); ++i) {
    testing::Random random(static_cast<std::uint64_t>(i));
    const Shape shape = testing::random_shape(random);
    const Layout outer = cut_rows(shape, testing::random_blocks(random, shape.rows), random.small(1, 4));
    const int inner = random.small(1, 5);
    const std::int64_t align = random.between(1, 4);
    const Layout storage = cut_local_rows(outer, inner, align, random.one_in(2));
    for (int rank = 0; rank < outer.size(); ++rank) {
      Rows stacked;
      for (int part = 0; part < inner; ++part) {
        const Rows rows = rows_of(storage.ranks[rank + outer.size() * part]);
        stacked.insert(stacked.end(), rows.begin(), rows.end());
      }
      ASSERT_EQ(stacked, rows_of(outer.ranks[rank])) << i;
    }
  }
}

}  // namespace
}  // namespace tessera::layout
