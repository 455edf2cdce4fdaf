#include "tessera/layout/redistribute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <tuple>

#include "dense_reference.h"
#include "random_layouts.h"
#include "tessera/base/error.h"
#include "tessera/layout/home.h"

namespace tessera::layout {
namespace {

using testing::Buffers;
using ::testing::HasSubstr;
using testing::Random;

constexpr std::int64_t kPadding = -1, kUntouched = -2;

Buffers<std::int64_t> numbered(const Layout& layout, std::int64_t padding) {
  return testing::fill<std::int64_t>(
      layout, padding, [&](int, std::int64_t row, std::int64_t col) { return row * layout.shape.cols + col; });
}
Buffers<std::int64_t> empty_buffers(const Layout& layout) {
  return testing::fill<std::int64_t>(layout, kUntouched, [](int, std::int64_t, std::int64_t) { return kUntouched; });
}

Buffers<std::int64_t> moved(const TransferPlan& plan, const Buffers<std::int64_t>& source, const Layout& to) {
  Buffers<std::int64_t> target = empty_buffers(to);
  testing::run_plan(plan, source, target);
  return target;
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

bool is_ordered(const TransferPlan& plan) {
  const auto key = [](const Transfer& t) { return std::tuple(t.target, t.target_offset, t.source); };
  return std::adjacent_find(plan.transfers.begin(), plan.transfers.end(), [&](const Transfer& a, const Transfer& b) {
           return key(a) >= key(b);
         }) == plan.transfers.end();
}

TEST(Redistribute, WritesEveryElementOnceAndNothingElse) {
  for (int i = 0; i < testing::iterations(6000); ++i) {
    Random random(static_cast<std::uint64_t>(i));
    const Shape shape = testing::random_shape(random);
    const int ranks = random.small(1, 9);
    const Layout from = testing::random_cover(random, shape, ranks), to = testing::random_any(random, shape, ranks);
    const TransferPlan plan = redistribute(from, to);
    ASSERT_FALSE(plan.adds);
    ASSERT_EQ(moved(plan, numbered(from, kPadding), to), numbered(to, kUntouched)) << i << "\n"
                                                                                   << to_string(from) << to_string(to);
    for (const auto& elements : testing::origins(plan)) {
      for (const auto& [at, parts] : elements) ASSERT_EQ(parts.size(), 1u) << i;
    }
    ASSERT_TRUE(is_ordered(plan)) << i;
  }
}

TEST(Redistribute, TakesElementsFromTheRankItselfFirst) {
  for (int i = 0; i < testing::iterations(3000); ++i) {
    Random random(static_cast<std::uint64_t>(i));
    const Shape shape = testing::random_shape(random);
    const int ranks = random.small(1, 7);
    const Layout from = testing::random_cover(random, shape, ranks), to = testing::random_any(random, shape, ranks);
    const auto holders = testing::holders(from);
    std::vector<std::int64_t> needed(static_cast<std::size_t>(ranks));  // elements from other ranks
    testing::for_each_element(to, [&](int rank, std::int64_t, std::int64_t row, std::int64_t col) {
      const auto& own = holders[static_cast<std::size_t>(row * shape.cols + col)];
      needed[rank] += std::find(own.begin(), own.end(), rank) == own.end();
    });
    const TransferPlan plan = redistribute(from, to);
    std::int64_t sent = 0, received = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      ASSERT_EQ(plan.elements_received(rank), needed[rank]) << i;
      sent += plan.elements_sent(rank);
      received += needed[rank];
    }
    ASSERT_EQ(sent, received) << i;
  }
}

TEST(Redistribute, StorageToComputeAndBackIsTheIdentity) {
  for (int i = 0; i < testing::iterations(3000); ++i) {
    Random random(static_cast<std::uint64_t>(i));
    const Shape shape = testing::random_shape(random);
    const int ranks = random.small(1, 8);
    const Layout storage = testing::random_exact(random, shape, ranks);
    const Layout compute = testing::random_cover(random, shape, ranks);
    const auto full = moved(redistribute(storage, compute), numbered(storage, kPadding), compute);
    ASSERT_EQ(moved(redistribute(compute, storage), full, storage), numbered(storage, kUntouched)) << i;
  }
}

TEST(Redistribute, EveryRankAndEveryCallGiveTheSamePlan) {
  for (int i = 0; i < testing::iterations(1500); ++i) {
    Random random(static_cast<std::uint64_t>(i)), again(static_cast<std::uint64_t>(i));
    const auto plan_of = [](Random& r) {
      const Shape shape = testing::random_shape(r);
      const int ranks = r.small(1, 8);
      const Layout from = testing::random_cover(r, shape, ranks);
      return redistribute(from, testing::random_any(r, shape, ranks));
    };
    const TransferPlan plan = plan_of(random);
    ASSERT_EQ(plan.transfers, plan_of(again).transfers) << i;
  }
}

// A plan depends on the offsets of elements, and not on the division into pieces.
TEST(Redistribute, SplitPiecesGiveTheSamePlan) {
  for (int i = 0; i < testing::iterations(1500); ++i) {
    Random random(static_cast<std::uint64_t>(i));
    const Shape shape = testing::random_shape(random);
    const int ranks = random.small(1, 8);
    const Layout from = cut_rows(shape, testing::random_blocks(random, shape.rows), ranks);
    const Layout other = cut_cols(shape, ranks);
    ASSERT_EQ(redistribute(testing::split_pieces(random, from), testing::split_pieces(random, other)).transfers,
              redistribute(from, other).transfers)
        << i;
  }
}

TEST(Redistribute, HoldersAreUsedEvenly) {
  // 12 ranks need the whole tensor and 4 ranks hold it, so each holder sends to 3 ranks. The holders are any of the
  // ranks.
  for (int first = 0; first < 12; ++first) {
    Layout from{.shape = {6, 2}, .ranks = std::vector<LocalLayout>(16)};
    for (int holder = 0; holder < 4; ++holder) from.ranks[first + holder] = replicated({6, 2}, 1).ranks[0];
    const TransferPlan plan = redistribute(from, replicated({6, 2}, 16));
    EXPECT_EQ(plan.transfers.size(), 16u);
    for (int holder = 0; holder < 4; ++holder) EXPECT_EQ(plan.elements_sent(first + holder), 3 * 12);
  }
}

TEST(Redistribute, LoadsOfHoldersDifferByAtMostOnePiece) {
  for (int i = 0; i < testing::iterations(1000); ++i) {
    Random random(static_cast<std::uint64_t>(i));
    // A group holds the same tensor, and other ranks need random rows of it. The plan chooses the holder that has sent
    // least, so loads differ by at most the largest transfer.
    const Shape shape{.rows = random.between(1, 20), .cols = random.between(1, 4)};
    const int group = random.small(1, 5), others = random.small(1, 8);
    std::vector<std::vector<Range>> wanted(static_cast<std::size_t>(group));
    for (int rank = 0; rank < others; ++rank) {
      const std::int64_t begin = random.between(0, shape.rows);
      wanted.push_back({{begin, random.between(begin, shape.rows)}});
    }
    Layout from = replicated(shape, group);
    from.ranks.resize(wanted.size());
    const TransferPlan plan = redistribute(from, rows_by_rank(shape, wanted));
    std::int64_t least = shape.elements() * others, most = 0, largest = 0;
    for (int rank = 0; rank < group; ++rank) {
      least = std::min(least, plan.elements_sent(rank));
      most = std::max(most, plan.elements_sent(rank));
    }
    for (const Transfer& transfer : plan.transfers) largest = std::max(largest, transfer.box.elements());
    ASSERT_LE(most - least, largest) << i;
  }
}

TEST(Redistribute, TransfersAreAsLargeAsPossible) {
  // Single rows are on different ranks, and every rank needs all rows. The plan has one transfer for each pair of
  // ranks.
  std::vector<std::vector<Range>> single_rows(2);
  for (std::int64_t row = 0; row < 8; ++row) single_rows[row / 4].push_back({row, row + 1});
  EXPECT_EQ(redistribute(rows_by_rank({8, 3}, single_rows), replicated({8, 3}, 2)).transfers.size(), 4u);
  // The left and the right half of the columns are side by side in the buffer of a rank.
  const Layout halves{.shape = {4, 6},
                      .ranks = {{.pieces = {{{0, 4, 0, 3}, 0, 6}, {{0, 4, 3, 3}, 3, 6}}, .size = 24}, {}}};
  const Layout other{.shape = {4, 6}, .ranks = {{}, replicated({4, 6}, 1).ranks[0]}};
  EXPECT_EQ(redistribute(halves, other).transfers.size(), 1u);
  // One rank holds the whole tensor, and other ranks hold narrow columns. The edges of these columns must not divide
  // the transfers of the first rank into strips.
  const Layout mixed{.shape = {4, 6},
                     .ranks = {{.pieces = {{{0, 3, 0, 6}, 0, 6}}, .size = 18},
                               {.pieces = {{{3, 1, 0, 2}, 0, 2}}, .size = 2},
                               {.pieces = {{{3, 1, 2, 4}, 0, 4}}, .size = 4},
                               {}}};
  Layout target{.shape = {4, 6}, .ranks = std::vector<LocalLayout>(4)};
  target.ranks[3] = replicated({4, 6}, 1).ranks[0];
  EXPECT_EQ(redistribute(mixed, target).transfers.size(), 3u);
}

TEST(Redistribute, NeighboursWithDifferentStridesAreNotJoined) {
  // The pieces are adjacent in the matrix, and their first elements are adjacent in the buffer, but their strides
  // differ.
  const Layout beside{.shape = {2, 3}, .ranks = {{.pieces = {{{0, 2, 0, 2}, 0, 4}, {{0, 2, 2, 1}, 2, 5}}, .size = 8}}};
  const Layout below{.shape = {4, 1}, .ranks = {{.pieces = {{{0, 2, 0, 1}, 0, 2}, {{2, 2, 0, 1}, 4, 3}}, .size = 8}}};
  const Layout apart{.shape = {4, 1}, .ranks = {{.pieces = {{{0, 2, 0, 1}, 0, 2}, {{2, 2, 0, 1}, 5, 2}}, .size = 8}}};
  for (const Layout& layout : {beside, below, apart}) {
    const Layout dense = replicated(layout.shape, 1);
    EXPECT_EQ(moved(redistribute(layout, dense), numbered(layout, kPadding), dense), numbered(dense, kUntouched));
    EXPECT_EQ(moved(redistribute(dense, layout), numbered(dense, kPadding), layout), numbered(layout, kUntouched));
  }
}

TEST(Redistribute, TransferHasOffsetsAndStridesOfBothBuffers) {
  const Layout from = cut_rows({4, 6}, {{"all", 4}}, 2), to = cut_cols({4, 6}, 2);
  const TransferPlan plan = redistribute(from, to);
  const Transfer expected{.source = 0,
                          .target = 1,
                          .box = {0, 2, 3, 3},
                          .source_offset = 3,
                          .source_stride = 6,
                          .target_offset = 0,
                          .target_stride = 3};
  ASSERT_EQ(plan.transfers.size(), 4u);
  EXPECT_EQ(plan.transfers[2], expected);
  EXPECT_EQ(plan.elements_sent(0), 6);
  EXPECT_EQ(plan.elements_received(1), 6);
}

TEST(Redistribute, RefusesInvalidLayouts) {
  const Layout two = replicated({4, 2}, 2);
  EXPECT_THAT(error_of([&] {
                redistribute(two, replicated({4, 3}, 2));
              }),
              HasSubstr("from a tensor of 4 x 2 to 4 x 3"));
  EXPECT_THAT(error_of([&] { redistribute(two, replicated({4, 2}, 3)); }), HasSubstr("from 2 ranks to 3"));
  const Layout holes = rows_by_rank({4, 2}, {{{0, 1}}, {{2, 4}}});
  EXPECT_THAT(error_of([&] { redistribute(holes, two); }),
              HasSubstr("rank 0 needs rows [1, 2) cols [0, 2), which no rank holds"));
  EXPECT_THAT(error_of([&] { redistribute_add(holes, two); }),
              HasSubstr("rank 0 needs rows [1, 2) cols [0, 2), which no rank"));
  EXPECT_THAT(error_of([&] { redistribute(rows_by_rank({4, 2}, {{}, {}}), two); }), HasSubstr("rows [0, 4)"));
  Layout partial = two;
  partial.state = State::partial;
  EXPECT_THAT(error_of([&] { redistribute(two, partial); }), HasSubstr("the target layout is partial"));
  EXPECT_THAT(error_of([&] { redistribute_add(two, partial); }), HasSubstr("storage layout is partial"));
  Layout broken = two;
  broken.ranks[1].size = 7;
  EXPECT_THAT(error_of([&] { redistribute(two, broken); }), HasSubstr("rank 1 piece 0"));
  EXPECT_THAT(error_of([&] { redistribute(broken, two); }), HasSubstr("rank 1 piece 0"));
}

TEST(Redistribute, ReportsMissingElementsAnywhere) {
  int refused = 0;
  for (int i = 0; i < testing::iterations(3000); ++i) {
    Random random(static_cast<std::uint64_t>(i));
    const Shape shape = testing::random_shape(random);
    const int ranks = random.small(1, 6);
    const Layout from = testing::random_any(random, shape, ranks), to = testing::random_any(random, shape, ranks);
    const auto held = testing::holders(from), needed = testing::holders(to);
    bool missing = false;
    for (std::size_t e = 0; e < held.size(); ++e) missing = missing || (held[e].empty() && !needed[e].empty());
    ASSERT_EQ(error_of([&] { redistribute(from, to); }) != "", missing) << i;
    ASSERT_EQ(error_of([&] { redistribute_add(from, to); }) != "", missing) << i;
    refused += missing;
  }
  EXPECT_GT(refused, 0);
}

TEST(Redistribute, PartialLayoutMovesWithinRanksOnly) {
  for (int i = 0; i < testing::iterations(500); ++i) {
    Random random(static_cast<std::uint64_t>(i));
    Layout from = testing::random_cover(random, testing::random_shape(random), random.small(1, 5));
    from.state = State::partial;
    const Layout to = testing::move_pieces(random, from);
    const TransferPlan plan = redistribute(from, to);
    ASSERT_FALSE(plan.adds);
    for (const Transfer& transfer : plan.transfers) ASSERT_EQ(transfer.source, transfer.target) << i;
    ASSERT_EQ(moved(plan, numbered(from, kPadding), to), numbered(to, kUntouched)) << i;
  }
  Layout from = replicated({4, 2}, 2), to = cut_rows({4, 2}, {{"all", 4}}, 2);
  from.state = to.state = State::partial;
  EXPECT_THAT(error_of([&] { redistribute(from, to); }), HasSubstr("rank 0 of a partial layout keeps 4 of its 8"));
  EXPECT_THAT(error_of([&] { redistribute(to, from); }), HasSubstr("needs elements that only rank"));
}

// Returns the part of an element on a rank. The fp32 sum of the parts depends on the order of the additions.
float part_of(int rank, std::int64_t row, std::int64_t col) {
  const auto mixed = static_cast<std::uint32_t>(rank * 7919 + row * 104729 + col + 1) * 2654435761u;
  return (static_cast<float>(mixed >> 8) - 8388608.0f) * 1.1e-3f;
}

TEST(RedistributeAdd, EqualsTheDenseSumInRankOrder) {
  int order_matters = 0;
  for (int i = 0; i < testing::iterations(4000); ++i) {
    Random random(static_cast<std::uint64_t>(i));
    const Shape shape = testing::random_shape(random);
    const int ranks = random.small(1, 8);
    Layout compute = testing::random_cover(random, shape, ranks);
    const Layout storage = testing::random_any(random, shape, ranks);
    const TransferPlan plan = redistribute_add(compute, storage);
    ASSERT_TRUE(plan.adds);
    ASSERT_TRUE(is_ordered(plan)) << i;
    const auto holders = testing::holders(compute);
    const auto sum = [&](int, std::int64_t row, std::int64_t col) {
      float total = 0, backwards = 0;
      const auto& own = holders[static_cast<std::size_t>(row * shape.cols + col)];
      for (std::size_t k = 0; k < own.size(); ++k) {
        total = k == 0 ? part_of(own[0], row, col) : total + part_of(own[k], row, col);
        backwards += part_of(own[own.size() - 1 - k], row, col);
      }
      order_matters += total != backwards;
      return total;
    };
    const auto source = testing::fill<float>(compute, -1.0f, part_of);
    auto target = testing::fill<float>(storage, -2.0f, [](int, std::int64_t, std::int64_t) { return -2.0f; });
    testing::run_plan(plan, source, target);
    ASSERT_EQ(target, testing::fill<float>(storage, -2.0f, sum)) << i << "\n"
                                                                 << to_string(compute) << to_string(storage);
    compute.state = State::partial;
    ASSERT_EQ(redistribute(compute, storage).transfers, plan.transfers) << i;
    ASSERT_TRUE(redistribute(compute, storage).adds) << i;
  }
  EXPECT_GT(order_matters, 0) << "the numbers must tell orders apart";
}

// 4 query heads and 2 key/value heads of 2 rows over tp 4 (each key/value head on two ranks), then gtp 3.
TEST(Chains, KeyValueHeadsOnSeveralTpRanks) {
  const Shape shape{.rows = 16, .cols = 5};  // q 0-7, k 8-11, v 12-15
  std::vector<std::vector<Range>> heads;
  for (std::int64_t tp = 0; tp < 4; ++tp) {
    const std::int64_t kv = tp / 2 * 2;
    heads.push_back({{2 * tp, 2 * tp + 2}, {8 + kv, 10 + kv}, {12 + kv, 14 + kv}});
  }
  const Layout compute = rows_by_rank(shape, heads), home = unique_home(compute);
  ASSERT_NO_THROW(validate(home, Cover::exact));
  EXPECT_EQ(home.ranks[0], compute.ranks[0]);
  EXPECT_EQ(home.ranks[1].size, 2 * 5) << "its key/value head is at home on rank 0";

  const Layout storage = cut_local_rows(home, 3), everywhere = repeat(compute, 3);
  ASSERT_NO_THROW(validate(storage, Cover::exact));
  EXPECT_EQ(moved(redistribute(storage, everywhere), numbered(storage, kPadding), everywhere),
            numbered(everywhere, kUntouched));
  // The gather has one step for each axis: first over gtp, which gathers the home parts, then over tp, which sends
  // shared heads to all ranks that use them.
  const Layout homes = repeat(home, 3);
  for (int tp = 0; tp < 4; ++tp) {
    const std::vector<int> group{tp, tp + 4, tp + 8};
    const Layout shards = select(storage, group), whole = select(homes, group);
    EXPECT_EQ(recognise(redistribute(shards, whole), shards, whole).kind, CollectiveKind::all_gather);
  }
  const auto at_home = moved(redistribute(storage, homes), numbered(storage, kPadding), homes);
  EXPECT_EQ(moved(redistribute(homes, everywhere), at_home, everywhere), numbered(everywhere, kUntouched));
}

TEST(Chains, SurvivorsTakeOverTheRowsOfALostRank) {
  const Shape shape{.rows = 23, .cols = 3};
  const Layout before = repeat(cut_rows(shape, {{"all", 23}}, 4), 2);  // two replicas, rank 2 is lost
  Layout left = before;
  left.ranks[2] = {};
  Layout after = cut_rows(shape, {{"all", 23}}, 3);
  after.ranks.insert(after.ranks.begin() + 2, LocalLayout{});
  after.ranks.insert(after.ranks.end(), before.ranks.begin() + 4, before.ranks.end());
  const TransferPlan plan = redistribute(left, after);
  EXPECT_EQ(moved(plan, numbered(left, kPadding), after), numbered(after, kUntouched));
  EXPECT_EQ(plan.elements_sent(2), 0);
  EXPECT_EQ(plan.elements_received(5), 0) << "a healthy replica receives nothing";
}

// Plans for thousands of ranks. The number of transfers shows that no transfer is divided needlessly. An algorithm of
// quadratic time would take minutes.
TEST(Scale, ThousandsOfRanks) {
  const Shape shape{.rows = 57344, .cols = 8192};
  const Layout compute = cut_rows(shape, {{"gate", 28672}, {"up", 28672}}, 8);
  const Layout storage = cut_local_rows(compute, 512);  // 14 of 7168 local rows: no shard holds gate and up rows
  const Layout everywhere = repeat(compute, 512);
  ASSERT_NO_THROW(validate(storage, Cover::exact));
  const std::vector<int> group = [] {
    std::vector<int> ranks;
    for (int i = 0; i < 512; ++i) ranks.push_back(3 + 8 * i);
    return ranks;
  }();
  const Layout shards = select(storage, group), whole = select(everywhere, group);
  const TransferPlan gather = redistribute(shards, whole), reduce = redistribute_add(whole, shards);
  EXPECT_EQ(gather.transfers.size(), 512u * 512u);
  EXPECT_EQ(reduce.transfers.size(), 512u * 512u);
  EXPECT_EQ(recognise(gather, shards, whole).kind, CollectiveKind::all_gather);
  EXPECT_TRUE(recognise(reduce, whole, shards).uniform);
  EXPECT_EQ(redistribute(storage, storage).transfers.size(), 4096u);
}

}  // namespace
}  // namespace tessera::layout
