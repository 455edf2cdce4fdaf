// Runs redistribution plans over real ranks and compares them with values that each rank computes from the layouts
// alone.
#include "tessera/comm/redistribution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "tessera/base/error.h"
#include "tests/comm/layouts.h"
#include "tests/comm/placed.h"
#include "tests/comm/ranks.h"
#include "tests/comm/values.h"

namespace tessera::comm {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using layout::CollectiveKind;
using layout::cut_cols;
using layout::Layout;
using layout::LocalLayout;
using layout::Piece;
using layout::rows_by_rank;
using quant::DType;

constexpr float kUntouched = 12345.0f;

// Values of partial layouts differ by rank. Replicated layouts hold the same value on every rank.
float value_at(const Layout& layout, int rank, std::int64_t logical) {
  return value_of<float>(layout.state == layout::State::partial ? rank : 0, logical);
}

std::vector<float> filled(const Layout& layout, int rank) {
  std::vector<float> local(static_cast<std::size_t>(layout.ranks[static_cast<std::size_t>(rank)].size), kUntouched);
  for_each_element(layout, rank, [&](std::int64_t logical, std::int64_t offset) {
    local[static_cast<std::size_t>(offset)] = value_at(layout, rank, logical);
  });
  return local;
}

std::vector<float> expected(const Layout& from, const Layout& to, int rank) {
  std::map<std::int64_t, float> sums;  // logical element -> value, added in rank order
  for (int source = 0; source < from.size(); ++source)
    for_each_element(from, source, [&](std::int64_t logical, std::int64_t) {
      const float value = value_at(from, source, logical);
      const auto [at, is_first] = sums.try_emplace(logical, value);
      if (!is_first && from.state == layout::State::partial) at->second += value;
    });
  std::vector<float> local(static_cast<std::size_t>(to.ranks[static_cast<std::size_t>(rank)].size), kUntouched);
  for_each_element(to, rank, [&](std::int64_t logical, std::int64_t offset) {
    local[static_cast<std::size_t>(offset)] = sums.at(logical);
  });
  return local;
}

void check_on(Communicator& group, const Layout& from, const Layout& to) {
  const Redistribution redistribution(from, to, group.rank());
  const base::Device device = group.kernels().device();
  const Placed source(filled(from, group.rank()), device);
  const auto size = static_cast<std::size_t>(to.ranks[static_cast<std::size_t>(group.rank())].size);
  Placed target(std::vector<float>(size, kUntouched), device);
  redistribution.run(group, source.data(), target.data(), DType::fp32).synchronize();
  EXPECT_EQ(redistribution.elements_received(), layout::redistribute(from, to).elements_received(group.rank()));
  EXPECT_TRUE(same_bits(target.values(), expected(from, to, group.rank())))
      << layout::name_of(redistribution.collective().kind) << "\nfrom\n"
      << layout::to_string(from) << "\nto\n"
      << layout::to_string(to);
}

void check(const Layout& from, const Layout& to, CollectiveKind kind) {
  if (!has_ranks(from.size())) return;
  EXPECT_EQ(Redistribution(from, to, 0).collective().kind, kind);
  on_ranks(from.size(), [&](Communicator& group) { check_on(group, from, to); });
}

constexpr layout::Shape kShape{10, 6};
Layout cut(int ranks) {
  return cut_rows(kShape, {{.name = "all", .rows = 10}}, ranks);
}

TEST(Redistribute, RecognisedCollectivesEqualTheTransfers) {
  for (const int ranks : {2, 3, 4}) {
    check(cut(ranks), replicated(kShape, ranks), CollectiveKind::all_gather);
    check(partial(replicated(kShape, ranks)), cut(ranks), CollectiveKind::reduce_scatter);
    check(partial(replicated(kShape, ranks)), replicated(kShape, ranks), CollectiveKind::all_reduce);
    check(replicated(kShape, ranks), replicated(kShape, ranks), CollectiveKind::none);
    check(replicated(kShape, ranks), cut(ranks), CollectiveKind::local);
  }
  check(cut_cols(kShape, 3), cut(3), CollectiveKind::transfers);
  check(cut(3), cut_cols(kShape, 3), CollectiveKind::transfers);
  check(replicated(kShape, 1), replicated(kShape, 1), CollectiveKind::none);
}

TEST(Redistribute, NamedBlocksNestedCutsAndPadding) {
  const std::vector<layout::Block> blocks{{.name = "gate", .rows = 6, .unit = 2}, {.name = "up", .rows = 4}};
  const Layout tp = cut_rows(kShape, blocks, 2);
  for (const bool padded : {false, true}) {
    const Layout storage = cut_local_rows(tp, 3, 1, padded);
    check(storage, repeat(tp, 3), CollectiveKind::transfers);
    check(partial(repeat(tp, 3)), storage, CollectiveKind::transfers);
    check(storage, replicated(kShape, 6), CollectiveKind::transfers);
  }
}

TEST(Redistribute, OverlappingHoldersAdd) {
  // Rows 2 to 4 are on ranks 0 and 1, and row 6 on ranks 1 and 2: like key/value heads if tp has more ranks than heads.
  const Layout compute = rows_by_rank(kShape, {{{0, 5}}, {{2, 7}}, {{6, 10}}});
  check(compute, cut(3), CollectiveKind::local);
  check(partial(compute), cut(3), CollectiveKind::transfers);
  check(partial(compute), replicated(kShape, 3), CollectiveKind::transfers);
}

TEST(Redistribute, RandomLayoutsAgreeWithTheDenseReference) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    if (!has_ranks(ranks)) continue;
    on_ranks(ranks, [&](Communicator& group) {
      std::mt19937 random(static_cast<unsigned>(1000 + ranks));  // the same on every rank
      for (int round = 0; round < 60; ++round) {
        const layout::Shape shape{1 + static_cast<std::int64_t>(random() % 12),
                                  1 + static_cast<std::int64_t>(random() % 9)};
        Layout from = random_layout(random, shape, ranks);
        if (round % 2 == 1) from.state = layout::State::partial;
        check_on(group, from, random_layout(random, shape, ranks));
      }
    });
  }
}

TEST(Redistribute, SumsOfBfloat16AreRoundedOnce) {
  if (!has_ranks(3)) GTEST_SKIP() << "fewer than 3 processes";
  const Layout from = partial(rows_by_rank({3, 50}, {{{0, 3}}, {{0, 3}}, {{0, 3}}}));
  const Layout to = cut_cols({3, 50}, 3, 5);
  on_ranks(3, [&](Communicator& group) {
    using quant::bfloat16;
    const Redistribution redistribution(from, to, group.rank(), DType::bf16);
    EXPECT_EQ(redistribution.collective().kind, CollectiveKind::transfers);
    const Placed source(values_of<bfloat16>(group.rank(), 0, 150), group.kernels().device());
    Placed<bfloat16> sums(to.ranks[static_cast<std::size_t>(group.rank())].size, group.kernels().device());
    redistribution.run(group, source.data(), sums.data(), DType::bf16).synchronize();
    const auto target = sums.values();
    for_each_element(to, group.rank(), [&](std::int64_t logical, std::int64_t offset) {
      const auto part = [&](int rank) { return static_cast<float>(value_of<bfloat16>(rank, logical)); };
      EXPECT_EQ(target[static_cast<std::size_t>(offset)].bits, bfloat16(part(0) + part(1) + part(2)).bits);
    });
  });
}

// Columns with different holders are parts of rows, which are rounded where they are.
TEST(Redistribute, SumsOfColumnsAreRoundedInTheirRows) {
  if (!has_ranks(2)) GTEST_SKIP() << "fewer than 2 processes";
  using quant::bfloat16;
  Layout from = partial(layout::replicated({3, 50}, 2));
  from.ranks[0] = {.pieces = {{.box = {.row = 0, .rows = 3, .col = 0, .cols = 30}, .stride = 30}}, .size = 90};
  const Layout to = rows_by_rank({3, 50}, {{}, {{0, 3}}});
  on_ranks(2, [&](Communicator& group) {
    std::vector<bfloat16> values(static_cast<std::size_t>(from.ranks[static_cast<std::size_t>(group.rank())].size));
    for_each_element(from, group.rank(), [&](std::int64_t logical, std::int64_t offset) {
      values[static_cast<std::size_t>(offset)] = value_of<bfloat16>(group.rank(), logical);
    });
    const Placed source(values, group.kernels().device());
    Placed<bfloat16> sums(to.ranks[static_cast<std::size_t>(group.rank())].size, group.kernels().device());
    Redistribution(from, to, group.rank(), DType::bf16)
        .run(group, source.data(), sums.data(), DType::bf16)
        .synchronize();
    const auto target = sums.values();
    for_each_element(to, group.rank(), [&](std::int64_t logical, std::int64_t offset) {
      const auto part = [&](int rank) { return static_cast<float>(value_of<bfloat16>(rank, logical)); };
      const float sum = logical % 50 < 30 ? part(0) + part(1) : part(1);
      EXPECT_EQ(target[static_cast<std::size_t>(offset)].bits, bfloat16(sum).bits) << logical;
    });
  });
}

TEST(Redistribute, NegativeZerosKeepTheirSignInSums) {
  if (!has_ranks(2)) GTEST_SKIP() << "fewer than 2 processes";
  const Layout from = partial(rows_by_rank({2, 1}, {{{0, 2}}, {{1, 2}}}));
  const Layout to = rows_by_rank({2, 1}, {{}, {{0, 2}}});
  on_ranks(2, [&](Communicator& group) {
    const Placed source(std::vector<float>(2, -0.0f), group.kernels().device());
    Placed target(std::vector<float>(2, 1.0f), group.kernels().device());
    const Redistribution redistribution(from, to, group.rank());
    redistribution.run(group, source.data(), target.data(), DType::fp32).synchronize();
    if (group.rank() == 0) return;
    for (const float value : target.values()) EXPECT_TRUE(value == 0 && std::signbit(value));
  });
}

TEST(Redistribute, RefusesTheWrongGroupAndIntegerSums) {
  if (!has_ranks(2)) GTEST_SKIP() << "fewer than 2 processes";
  on_ranks(2, [&](Communicator& group) {
    float data[60] = {};
    EXPECT_THAT([&] { Redistribution(cut(3), replicated(kShape, 3), 0).run(group, data, data, DType::fp32); },
                ThrowsMessage<Error>(HasSubstr("made for rank 0 of 3")));
    EXPECT_THAT(
        [&] { Redistribution(cut(2), replicated(kShape, 2), 1 - group.rank()).run(group, data, data, DType::fp32); },
        ThrowsMessage<Error>(HasSubstr(
            fmt::format("made for rank {} of 2, the group has rank {} of 2", 1 - group.rank(), group.rank()))));
    const Redistribution adding(partial(replicated(kShape, 2)), cut(2), group.rank());
    EXPECT_THAT([&] { adding.run(group, data, data, DType::i32); },
                ThrowsMessage<Error>(HasSubstr("expected a floating type for a plan that adds, got i32")));
    const Redistribution exchange(partial(replicated(kShape, 2)), cut_cols(kShape, 2), group.rank());
    EXPECT_THAT([&] { exchange.run(group, data, data, DType::bf16); },
                ThrowsMessage<Error>(HasSubstr("made for sums of fp32, got bf16")));
  });
  EXPECT_THAT([&] { Redistribution(cut(2), replicated(kShape, 2), 2); },
              ThrowsMessage<Error>(HasSubstr("expected a rank in [0, 2), got 2")));
  EXPECT_THAT([&] { Redistribution(cut(2), replicated(kShape, 3), 0); },
              ThrowsMessage<Error>(HasSubstr("redistribute: from 2 ranks to 3, expected the same ranks")));
}

}  // namespace
}  // namespace tessera::comm
