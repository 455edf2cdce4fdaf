// Compares several redistributions in one exchange with each redistribution alone.
#include <gtest/gtest.h>

#include <array>
#include "tessera/base/error.h"
#include "tessera/comm/redistribution.h"
#include "tests/comm/placed.h"
#include "tests/comm/ranks.h"
#include "tests/comm/values.h"

namespace tessera::comm {
namespace {

using layout::Layout;
using layout::rows_by_rank;
using layout::Shape;
using quant::DType;

struct Case {
  Layout from, to;
};

Layout cut(Shape shape, int ranks, std::int64_t unit = 1) {
  return cut_rows(shape, {{.name = "all", .rows = shape.rows, .unit = unit}}, ranks);
}

Layout on_one(Shape shape, int ranks, int holder) {
  std::vector<std::vector<layout::Range>> rows(static_cast<std::size_t>(ranks));
  rows[static_cast<std::size_t>(holder)] = {{0, shape.rows}};
  return rows_by_rank(shape, rows);
}

std::vector<Case> contiguous_cases(int ranks) {
  const Shape wide{13, 5}, few{2, 7}, vector{9, 1}, rows{16, 3};
  return {{cut(wide, ranks), replicated(wide, ranks)},
          {cut(few, ranks), replicated(few, ranks)},  // with 3 or more ranks some shards are empty
          {on_one(wide, ranks, ranks - 1), cut(wide, ranks)},
          {cut(vector, ranks), on_one(vector, ranks, 0)},
          {replicated(wide, ranks), cut(wide, ranks)},  // moves no data between ranks
          {cut(rows, ranks), cut(rows, ranks, 4)},
          {cut(wide, ranks), replicated(wide, ranks)}};
}

std::size_t size_at(const Layout& layout, int rank) {
  return static_cast<std::size_t>(layout.ranks[static_cast<std::size_t>(rank)].size);
}

TEST(RunTogether, EqualsEachRedistributionAlone) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    if (!has_ranks(ranks)) continue;
    const auto cases = contiguous_cases(ranks);
    on_ranks(ranks, [&](Communicator& group) {
      std::vector<std::unique_ptr<Redistribution>> own;
      std::vector<Placed<float>> sources, alone, together;
      const base::Device device = group.kernels().device();
      for (const Case& one : cases) {
        own.push_back(std::make_unique<Redistribution>(one.from, one.to, group.rank()));
        EXPECT_TRUE(own.back()->is_contiguous());
        const auto number = static_cast<std::int64_t>(1000 * own.size());
        sources.emplace_back(
            values_of<float>(group.rank(), number, static_cast<std::int64_t>(size_at(one.from, group.rank()))), device);
        alone.emplace_back(std::vector<float>(size_at(one.to, group.rank()), -1.0f), device);
        together.emplace_back(alone.back().values(), device);
        own.back()->run(group, sources.back().data(), alone.back().data(), DType::fp32).synchronize();
      }
      base::Fence done;
      {
        std::vector<Movement> movements;
        for (std::size_t m = 0; m < own.size(); ++m)
          movements.push_back({own[m].get(), sources[m].data(), together[m].data(), DType::fp32});
        done = run_together(group, movements);
      }
      done.synchronize();
      for (std::size_t m = 0; m < own.size(); ++m)
        EXPECT_TRUE(same_bits(together[m].values(), alone[m].values())) << "number " << m;
      run_together(group, {}).synchronize();
    });
  }
}

TEST(RunTogether, RedistributionsMayHaveDifferentTypes) {
  if (!has_ranks(3)) GTEST_SKIP() << "fewer than 3 processes";
  on_ranks(3, [&](Communicator& group) {
    const base::Device device = group.kernels().device();
    const Redistribution data(cut({7, 5}, 3), layout::replicated({7, 5}, 3), group.rank());
    const Redistribution scales(cut({4, 2}, 3), layout::replicated({4, 2}, 3), group.rank());
    const auto whole = values_of<std::uint8_t>(0, 0, 35);
    const auto whole_scales = values_of<double>(0, 50, 8);
    // The rank's rows of a whole matrix; cut() stores them densely.
    const auto part = [&](const auto& values, const Layout& layout, std::int64_t cols) {
      auto own = std::remove_cvref_t<decltype(values)>();
      for (const layout::Piece& piece : layout.ranks[static_cast<std::size_t>(group.rank())].pieces)
        own.insert(own.end(), values.begin() + piece.box.row * cols,
                   values.begin() + (piece.box.row + piece.box.rows) * cols);
      return own;
    };
    const Placed<std::uint8_t> from_data(part(whole, cut({7, 5}, 3), 5), device);
    const Placed<double> from_scales(part(whole_scales, cut({4, 2}, 3), 2), device);
    Placed<std::uint8_t> to_data(std::vector<std::uint8_t>(35), device);
    Placed<double> to_scales(std::vector<double>(8), device);
    run_together(group, std::array{Movement{&data, from_data.data(), to_data.data(), DType::u8},
                                   Movement{&scales, from_scales.data(), to_scales.data(), DType::fp64}})
        .synchronize();
    EXPECT_TRUE(same_bits(to_data.values(), whole));
    EXPECT_TRUE(same_bits(to_scales.values(), whole_scales));
  });
}

Layout terms(const Shape& shape, int ranks) {
  Layout layout = replicated(shape, ranks);
  layout.state = layout::State::partial;
  return layout;
}

// Sums that are one reduce_scatter, one all_reduce, or packed messages; some ranks own nothing.
TEST(SumTogether, EqualsEachSumAlone) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    if (!has_ranks(ranks)) continue;
    const Shape wide{13, 5}, few{2, 7}, vector{1, 9};
    const Case cases[] = {{terms(wide, ranks), cut(wide, ranks)},
                          {terms(few, ranks), cut(few, ranks)},
                          {terms(vector, ranks), on_one(vector, ranks, ranks - 1)},
                          {terms(wide, ranks), replicated(wide, ranks)},
                          {terms(wide, ranks), cut_cols(wide, ranks)}};
    on_ranks(ranks, [&](Communicator& group) {
      std::vector<std::unique_ptr<Redistribution>> own;
      std::vector<Placed<float>> sources, alone, together;
      const base::Device device = group.kernels().device();
      for (const Case& one : cases) {
        own.push_back(std::make_unique<Redistribution>(one.from, one.to, group.rank()));
        const auto number = static_cast<std::int64_t>(1000 * own.size());
        sources.emplace_back(
            values_of<float>(group.rank(), number, static_cast<std::int64_t>(size_at(one.from, group.rank()))), device);
        alone.emplace_back(std::vector<float>(size_at(one.to, group.rank()), -1.0f), device);
        together.emplace_back(alone.back().values(), device);
        own.back()->run(group, sources.back().data(), alone.back().data(), DType::fp32).synchronize();
      }
      base::Fence done;
      {
        std::vector<Movement> movements;
        for (std::size_t m = 0; m < own.size(); ++m)
          movements.push_back({own[m].get(), sources[m].data(), together[m].data(), DType::fp32});
        done = sum_together(group, movements);
      }
      done.synchronize();
      for (std::size_t m = 0; m < own.size(); ++m)
        EXPECT_TRUE(same_bits(together[m].values(), alone[m].values())) << "number " << m;
    });
  }
}

TEST(SumTogether, RefusesOtherPlans) {
  if (!has_ranks(2)) GTEST_SKIP() << "fewer than 2 processes";
  const Shape shape{6, 4};
  on_ranks(2, [&](Communicator& group) {
    const Redistribution sum(terms(shape, 2), cut(shape, 2), group.rank()),
        copy(cut(shape, 2), replicated(shape, 2), group.rank());
    std::vector<float> a(48), b(48);
    EXPECT_THROW(sum_together(group, std::array{Movement{&sum, a.data(), b.data(), DType::fp32},
                                                Movement{&copy, a.data(), b.data(), DType::fp32}}),
                 Error);
    EXPECT_THROW(sum_together(group, std::array{Movement{&sum, a.data(), b.data(), DType::bf16}}), Error);
  });
}

TEST(RunTogether, RefusesPlansThatAddOrNeedPacking) {
  if (!has_ranks(2)) GTEST_SKIP() << "fewer than 2 processes";
  const Shape shape{6, 4};
  Layout parts = replicated(shape, 2);
  parts.state = layout::State::partial;
  const Layout blocks = cut_rows(shape, {{.name = "gate", .rows = 2}, {.name = "up", .rows = 4}}, 2);
  // Only rank 1 sends here, in two runs. is_contiguous() is the same on both ranks.
  const Layout odd = rows_by_rank(shape, {{{0, 2}, {3, 4}}, {{2, 3}, {4, 6}}});
  const Layout first = rows_by_rank(shape, {{{0, 6}}, {{4, 6}}});
  on_ranks(2, [&](Communicator& group) {
    const Redistribution good(cut(shape, 2), replicated(shape, 2), group.rank());
    std::vector<float> a(48), b(48);
    const auto of = [&](const Redistribution& how) { return Movement{&how, a.data(), b.data(), DType::fp32}; };
    for (const Case& one : {Case{cut_cols(shape, 2), cut(shape, 2)}, Case{blocks, replicated(shape, 2)},
                            Case{parts, cut(shape, 2)}, Case{odd, first}}) {
      const Redistribution bad(one.from, one.to, group.rank());
      EXPECT_FALSE(bad.is_contiguous());
      EXPECT_THROW(run_together(group, std::array{of(good), of(bad)}), Error);
    }
    const Redistribution other(cut(shape, 3), replicated(shape, 3), 0);
    EXPECT_THROW(run_together(group, std::array{of(good), of(other)}), Error);
  });
}

}  // namespace
}  // namespace tessera::comm
