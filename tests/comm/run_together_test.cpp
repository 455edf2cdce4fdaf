// Several redistributions in one exchange, against each alone.
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/execute.h"
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
          {cut(few, ranks), replicated(few, ranks)},  // empty shards from 3 ranks on
          {on_one(wide, ranks, ranks - 1), cut(wide, ranks)},
          {cut(vector, ranks), on_one(vector, ranks, 0)},
          {replicated(wide, ranks), cut(wide, ranks)},  // nothing travels
          {cut(rows, ranks), cut(rows, ranks, 4)},
          {cut(wide, ranks), replicated(wide, ranks)}};
}

std::size_t size_at(const Layout& layout, int rank) {
  return static_cast<std::size_t>(layout.ranks[static_cast<std::size_t>(rank)].size);
}

TEST(RunTogether, GivesWhatEachAloneGives) {
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
        std::vector<const Redistribution*> members;
        std::vector<const void*> from;
        std::vector<void*> to;
        for (std::size_t m = 0; m < own.size(); ++m) {
          members.push_back(own[m].get());
          from.push_back(sources[m].data());
          to.push_back(together[m].data());
        }
        done = run_together(group, members, from, to, DType::fp32);
      }
      done.synchronize();
      for (std::size_t m = 0; m < own.size(); ++m)
        EXPECT_TRUE(same_bits(together[m].values(), alone[m].values())) << "number " << m;
      run_together(group, {}, {}, {}, DType::fp32).synchronize();
    });
  }
}

TEST(RunTogether, RefusesWhatNeedsPackingOrAdds) {
  if (!has_ranks(2)) GTEST_SKIP() << "fewer than 2 processes";
  const Shape shape{6, 4};
  Layout parts = replicated(shape, 2);
  parts.state = layout::State::partial;
  const Layout blocks = cut_rows(shape, {{.name = "gate", .rows = 2}, {.name = "up", .rows = 4}}, 2);
  // Only rank 1 sends here, in two runs; the answer is the same on both.
  const Layout odd = rows_by_rank(shape, {{{0, 2}, {3, 4}}, {{2, 3}, {4, 6}}});
  const Layout first = rows_by_rank(shape, {{{0, 6}}, {{4, 6}}});
  on_ranks(2, [&](Communicator& group) {
    const Redistribution good(cut(shape, 2), replicated(shape, 2), group.rank());
    std::vector<float> a(48), b(48);
    const std::vector<const void*> from{a.data(), a.data()};
    const std::vector<void*> to{b.data(), b.data()};
    for (const Case& one : {Case{cut_cols(shape, 2), cut(shape, 2)}, Case{blocks, replicated(shape, 2)},
                            Case{parts, cut(shape, 2)}, Case{odd, first}}) {
      const Redistribution bad(one.from, one.to, group.rank());
      EXPECT_FALSE(bad.is_contiguous());
      const std::vector<const Redistribution*> members{&good, &bad};
      EXPECT_THROW(run_together(group, members, from, to, DType::fp32), Error);
    }
    const std::vector<const Redistribution*> one{&good};
    EXPECT_THROW(run_together(group, one, from, to, DType::fp32), Error);
    const Redistribution other(cut(shape, 3), replicated(shape, 3), 0);
    const std::vector<const Redistribution*> mixed{&good, &other};
    EXPECT_THROW(run_together(group, mixed, from, to, DType::fp32), Error);
  });
}

}  // namespace
}  // namespace tessera::comm
