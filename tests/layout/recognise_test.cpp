#include <gtest/gtest.h>

#include <map>

#include "dense_reference.h"
#include "random_layouts.h"
#include "tessera/base/error.h"
#include "tessera/layout/redistribute.h"

namespace tessera::layout {
namespace {

using testing::Random;
using Counts = std::vector<std::int64_t>;

Collective gather(const Layout& storage, const Layout& compute) {
  return recognise(redistribute(storage, compute), storage, compute);
}
Collective reduce(const Layout& compute, const Layout& storage) {
  return recognise(redistribute_add(compute, storage), compute, storage);
}

void expect_same(const Collective& actual, const Collective& expected, const std::string& where) {
  ASSERT_EQ(name_of(actual.kind), name_of(expected.kind)) << where;
  ASSERT_EQ(actual.counts, expected.counts) << where;
  ASSERT_EQ(actual.uniform, expected.uniform) << where;
}

TEST(Recognise, KnownParallelTrainingSystems) {
  const Shape shape{.rows = 8, .cols = 3};
  const Layout whole = replicated(shape, 4), shards = cut_local_rows(replicated(shape, 1), 4);
  EXPECT_EQ(gather(whole, whole).kind, CollectiveKind::none);  // data parallel
  expect_same(reduce(whole, whole), {CollectiveKind::all_reduce, {24}, true}, "data parallel");
  expect_same(gather(shards, whole), {CollectiveKind::all_gather, {6, 6, 6, 6}, true}, "FSDP");
  expect_same(reduce(whole, shards), {CollectiveKind::reduce_scatter, {6, 6, 6, 6}, true}, "FSDP");
  EXPECT_EQ(gather(shards, shards).kind, CollectiveKind::none);  // tensor parallel
  EXPECT_EQ(reduce(shards, shards).kind, CollectiveKind::none);
}

TEST(Recognise, UnevenAndEmptyShards) {
  const Shape shape{.rows = 5, .cols = 2};
  const Layout whole = replicated(shape, 4), shards = cut_local_rows(replicated(shape, 1), 4);
  expect_same(gather(shards, whole), {CollectiveKind::all_gather, {4, 4, 2, 0}, false}, "5 rows over 4");
  expect_same(reduce(whole, shards), {CollectiveKind::reduce_scatter, {4, 4, 2, 0}, false}, "5 rows over 4");
  Layout one_holder{.shape = shape, .ranks = std::vector<LocalLayout>(4)};
  one_holder.ranks[2] = whole.ranks[0];
  expect_same(gather(one_holder, whole), {CollectiveKind::all_gather, {0, 0, 10, 0}, false}, "one shard");
  expect_same(reduce(whole, one_holder), {CollectiveKind::reduce_scatter, {0, 0, 10, 0}, false}, "one part");
}

TEST(Recognise, PlainCollectivesDoNotMovePadding) {
  const Shape shape{.rows = 5, .cols = 2};
  // 2, 2 and 1 rows; the last rank has a row of padding.
  const Layout padded = cut_local_rows(replicated(shape, 1), 3, 1, true);
  ASSERT_EQ(padded.ranks[2].size, 4);
  const Layout whole = replicated(shape, 3);
  // The padding is after the shards. Without padding, the shards are dense in the target: uneven counts.
  expect_same(gather(padded, whole), {CollectiveKind::all_gather, {4, 4, 2}, false}, "padding at the end");
  // If the target has the padding between shards, the plan must not write it.
  Layout spread = whole;
  for (LocalLayout& local : spread.ranks) {
    local = {.pieces = {{{0, 2, 0, 2}, 0, 2}, {{2, 2, 0, 2}, 6, 2}, {{4, 1, 0, 2}, 12, 2}}, .size = 16};
  }
  EXPECT_EQ(gather(padded, spread).kind, CollectiveKind::transfers);
  EXPECT_EQ(reduce(spread, padded).kind, CollectiveKind::transfers);
  // A layout with padding before a shard.
  Layout late = padded;
  late.ranks[2].pieces[0].offset = 2;
  EXPECT_EQ(gather(late, whole).kind, CollectiveKind::transfers);
  EXPECT_EQ(reduce(whole, late).kind, CollectiveKind::transfers);
  // Every buffer has gaps at the same places.
  Layout wide = whole;
  for (LocalLayout& local : wide.ranks) local = {.pieces = {{{0, 5, 0, 2}, 0, 3}}, .size = 15};
  EXPECT_EQ(reduce(wide, wide).kind, CollectiveKind::transfers);
  EXPECT_EQ(reduce(whole, whole).kind, CollectiveKind::all_reduce);
}

TEST(Recognise, GroupsOfTpTimesGtp) {
  const Layout compute = cut_rows({16, 3}, {{"gate", 8}, {"up", 8}}, 2), storage = cut_local_rows(compute, 2);
  const Layout everywhere = repeat(compute, 2);
  const std::vector<int> group{1, 3};
  const Layout shards = select(storage, group), whole = select(everywhere, group);
  expect_same(gather(shards, whole), {CollectiveKind::all_gather, {12, 12}, true}, "gate|up over gtp");
  expect_same(reduce(whole, shards), {CollectiveKind::reduce_scatter, {12, 12}, true}, "gate|up over gtp");
  EXPECT_EQ(gather(storage, everywhere).kind, CollectiveKind::transfers) << "two groups are not one collective";
  const Layout cols = cut_cols({16, 6}, 2), cols_storage = cut_local_rows(cols, 2);
  expect_same(gather(select(cols_storage, group), select(repeat(cols, 2), group)),
              {CollectiveKind::all_gather, {24, 24}, true}, "a row-parallel weight over gtp");
  // The order of the shards in the matrix differs from the order of their ranks.
  EXPECT_EQ(gather(select(storage, {3, 1}), select(everywhere, {3, 1})).kind, CollectiveKind::transfers);
}

TEST(Recognise, MovesInsideRanks) {
  const Layout from = rows_by_rank({4, 2}, {{{0, 1}, {1, 2}}, {{2, 3}, {3, 4}}});
  const Layout to = rows_by_rank({4, 2}, {{{1, 2}, {0, 1}}, {{2, 3}, {3, 4}}});
  EXPECT_EQ(gather(from, to).kind, CollectiveKind::local);
  EXPECT_EQ(gather(from, from).kind, CollectiveKind::none);
  const Layout wide{.shape = {4, 2}, .ranks = {{.pieces = {{{0, 4, 0, 2}, 0, 3}}, .size = 11}}};
  EXPECT_EQ(gather(replicated({4, 2}, 1), wide).kind, CollectiveKind::local) << "another stride is a move";
  const Layout nothing{.shape = {4, 2}, .ranks = std::vector<LocalLayout>(2)};
  EXPECT_EQ(gather(from, nothing).kind, CollectiveKind::none);
}

TEST(Recognise, AllToAll) {
  const Layout rows = cut_rows({3, 6}, {{"all", 3}}, 3), cols = cut_cols({3, 6}, 3);
  expect_same(gather(rows, cols), {CollectiveKind::all_to_all, {}, true}, "a row each");
  expect_same(gather(cut_rows({3, 7}, {{"all", 3}}, 3), cut_cols({3, 7}, 3)), {CollectiveKind::all_to_all, {}, false},
              "uneven");
  expect_same(gather(cut_rows({6, 6}, {{"all", 6}}, 3), cut_cols({6, 6}, 3)), {CollectiveKind::transfers, {}, false},
              "two rows each: two runs a pair");
}

TEST(Recognise, PartOfABufferIsNotAnAllReduce) {
  const Layout whole = replicated({4, 2}, 2);
  Layout shifted = whole;
  for (LocalLayout& local : shifted.ranks) local = {.pieces = {{{0, 4, 0, 2}, 1, 2}}, .size = 9};
  EXPECT_EQ(reduce(whole, shifted).kind, CollectiveKind::transfers);
  EXPECT_EQ(reduce(shifted, whole).kind, CollectiveKind::transfers);
  EXPECT_EQ(reduce(shifted, shifted).kind, CollectiveKind::transfers) << "the element before it is not the tensor's";
}

TEST(Recognise, ARankThatHoldsLessIsNotAFullMember) {
  const Shape shape{.rows = 4, .cols = 2};
  const Layout compute = rows_by_rank(shape, {{{0, 4}}, {{0, 3}}});
  EXPECT_EQ(reduce(compute, rows_by_rank(shape, {{{0, 4}}, {}})).kind, CollectiveKind::transfers);
  EXPECT_EQ(reduce(compute, replicated(shape, 2)).kind, CollectiveKind::transfers);
  const Layout storage = cut_rows(shape, {{"all", 4}}, 2);
  EXPECT_EQ(gather(storage, compute).kind, CollectiveKind::transfers);
}

TEST(Recognise, RefusesAPlanOfOtherLayouts) {
  const Layout two = replicated({4, 2}, 2), three = replicated({4, 2}, 3);
  EXPECT_THROW(recognise(redistribute(two, two), two, three), Error);
  EXPECT_THROW(recognise(redistribute(two, two), three, two), Error);
}

// A plan is recognised if and only if a collective on contiguous buffers executes it. The collective has the same
// result as the plan.
TEST(Recognise, AgreesWithTheDefinitionAndWithExecution) {
  std::map<std::string_view, int> seen;
  for (int i = 0; i < testing::iterations(6000); ++i) {
    Random random(static_cast<std::uint64_t>(i));
    const auto [storage, compute] = testing::random_pair(random);
    const bool adds = random.one_in(2);
    const Layout& from = adds ? compute : storage;
    const Layout& to = adds ? storage : compute;
    TransferPlan plan;
    try {
      plan = adds ? redistribute_add(from, to) : redistribute(from, to);
    } catch (const Error&) {
      continue;  // the compute layout lacks elements of the storage layout
    }
    const Collective collective = recognise(plan, from, to);
    ASSERT_NO_FATAL_FAILURE(expect_same(collective, testing::recognise_slowly(plan),
                                        std::to_string(i) + "\n" + to_string(from) + to_string(to)));
    ++seen[name_of(collective.kind)];
    float value = 0;
    const auto source =
        testing::fill<float>(from, -1.0f, [&](int, std::int64_t, std::int64_t) { return value += 0.1f; });
    const auto untouched = [](int, std::int64_t, std::int64_t) { return -2.0f; };
    auto by_plan = testing::fill<float>(to, -2.0f, untouched), by_collective = by_plan;
    testing::run_plan(plan, source, by_plan);
    testing::run_collective(collective, plan, source, by_collective);
    ASSERT_EQ(by_collective, by_plan) << i << " " << name_of(collective.kind);
  }
  for (const auto kind :
       {CollectiveKind::none, CollectiveKind::local, CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
        CollectiveKind::all_reduce, CollectiveKind::all_to_all, CollectiveKind::transfers}) {
    EXPECT_GT(seen[name_of(kind)], testing::iterations(6000) / 500) << name_of(kind);
  }
}

}  // namespace
}  // namespace tessera::layout
