// Compares ordered additions over real ranks with a scalar loop.
#include "tessera/comm/ordered_addition.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tests/comm/layouts.h"
#include "tests/comm/placed.h"
#include "tests/comm/ranks.h"
#include "tests/comm/values.h"

namespace tessera::comm {
namespace {

using layout::Layout;
using quant::bfloat16;
using quant::DType;

// An addition on one rank with its memory, and the expected result of a scalar loop.
template <typename Accumulator>
class Addition {
 public:
  Addition(Communicator& group, Layout from, Layout to, Addends addends, int rank, Start start)
      : group_(group),
        from_(partial(std::move(from))),
        to_(std::move(to)),
        addends_(addends),
        rank_(rank),
        start_(start),
        addition_(from_, to_, rank, std::move(addends)),
        source_(bytes_of_part(rank), group.kernels().device()),
        scratch_(std::vector<std::byte>(addition_.scratch_bytes(), std::byte{0xFF}), group.kernels().device()),
        target_(values_before(), group.kernels().device()) {}

  void add_messages(std::vector<Send>& sends, std::vector<Receive>& receives) {
    const std::size_t before = receives.size();
    addition_.add_messages(group_, source_.data(), scratch_.data(), sends, receives);
    for (std::size_t i = before; i < receives.size(); ++i) {
      const std::size_t element = quant::size_of(type_of(receives[i].peer - addends_.members.front()));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(receives[i].data) % element, 0u) << "rank " << receives[i].peer;
    }
  }
  void sum() {
    group_.lane().run([this, &kernels = group_.kernels()] {
      addition_.sum(kernels, source_.data(), scratch_.data(), target_.data(), start_);
    });
  }
  void check() const {
    EXPECT_TRUE(same_bits(target_.values(), expected())) << "rank " << rank_ << "\nfrom\n"
                                                         << layout::to_string(from_) << "\nto\n"
                                                         << layout::to_string(to_);
    std::int64_t received = 0;
    for (const layout::Transfer& transfer : layout::redistribute_add(from_, to_).transfers)
      if (transfer.target == rank_ && transfer.source != rank_)
        received += transfer.box.elements() * static_cast<std::int64_t>(quant::size_of(type_of(transfer.source)));
    EXPECT_EQ(addition_.received_bytes(), received);
  }

 private:
  DType type_of(int rank) const { return addends_.types[static_cast<std::size_t>(rank)]; }
  // Returns the value of an element in the rank's part, rounded to the part's type.
  Accumulator part(int rank, std::int64_t logical) const {
    if (type_of(rank) == DType::bf16)
      return static_cast<Accumulator>(static_cast<float>(value_of<bfloat16>(rank, logical)));
    return value_of<Accumulator>(rank, logical);
  }
  std::vector<std::byte> bytes_of_part(int rank) const {
    const std::size_t size = quant::size_of(type_of(rank));
    std::vector<std::byte> bytes(static_cast<std::size_t>(from_.ranks[static_cast<std::size_t>(rank)].size) * size);
    for_each_element(from_, rank, [&](std::int64_t logical, std::int64_t offset) {
      const Accumulator value = part(rank, logical);
      std::byte* at = bytes.data() + static_cast<std::size_t>(offset) * size;
      if (type_of(rank) == DType::bf16) {
        const bfloat16 rounded(static_cast<float>(value));
        std::memcpy(at, &rounded, size);
      } else {
        std::memcpy(at, &value, size);
      }
    });
    return bytes;
  }
  std::vector<Accumulator> values_before() const {
    std::vector<Accumulator> values(static_cast<std::size_t>(to_.ranks[static_cast<std::size_t>(rank_)].size));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_of<Accumulator>(99, static_cast<std::int64_t>(i));
    return values;
  }
  std::vector<Accumulator> expected() const {
    std::vector<Accumulator> values = values_before();
    for_each_element(to_, rank_, [&](std::int64_t logical, std::int64_t offset) {
      std::optional<Accumulator> sum;
      if (start_ == Start::target) sum = values[static_cast<std::size_t>(offset)];
      for (int rank = 0; rank < from_.size(); ++rank)
        for_each_element(from_, rank, [&](std::int64_t other, std::int64_t) {
          if (other == logical) sum = sum ? *sum + part(rank, logical) : part(rank, logical);
        });
      values[static_cast<std::size_t>(offset)] = *sum;
    });
    return values;
  }

  Communicator& group_;
  Layout from_, to_;
  Addends addends_;
  int rank_;
  Start start_;
  OrderedAddition addition_;
  Placed<std::byte> source_, scratch_;
  Placed<Accumulator> target_;
};

std::vector<int> ranks_from(int first, int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) ranks[static_cast<std::size_t>(i)] = first + i;
  return ranks;
}

// Returns random types for the parts of `count` ranks.
template <typename Accumulator>
std::vector<DType> random_types(std::mt19937& random, int count) {
  std::vector<DType> types;
  for (int rank = 0; rank < count; ++rank)
    types.push_back(std::is_same_v<Accumulator, double> ? DType::fp64 : random() % 2 == 0 ? DType::bf16 : DType::fp32);
  return types;
}

// Checks random additions among the ranks [first, first + count) of a group. All ranks draw the same additions. Three
// additions share each exchange.
template <typename Accumulator>
void check_random(Communicator& group, int first, int count, unsigned seed) {
  std::mt19937 random(seed);
  const int rank = group.rank() - first;
  for (int round = 0; round < 20; ++round) {
    std::vector<Addition<Accumulator>> cases;
    for (int i = 0; i < 3; ++i) {
      const layout::Shape shape{1 + static_cast<std::int64_t>(random() % 12),
                                1 + static_cast<std::int64_t>(random() % 9)};
      Layout from = random_layout(random, shape, count), to = random_layout(random, shape, count);
      Addends addends{.members = ranks_from(first, count),
                      .types = random_types<Accumulator>(random, count),
                      .accumulator = std::is_same_v<Accumulator, double> ? DType::fp64 : DType::fp32};
      const Start start = random() % 2 == 0 ? Start::nothing : Start::target;
      if (rank >= 0 && rank < count)
        cases.emplace_back(group, std::move(from), std::move(to), std::move(addends), rank, start);
    }
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (Addition<Accumulator>& one : cases) one.add_messages(sends, receives);
    group.exchange(std::move(sends), std::move(receives));
    for (Addition<Accumulator>& one : cases) one.sum();
    group.lane().record().synchronize();
    for (const Addition<Accumulator>& one : cases) one.check();
  }
}

TEST(OrderedAddition, OfRandomLayoutsEqualsAScalarLoop) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    if (!has_ranks(ranks)) continue;
    on_ranks(ranks, [&](Communicator& group) {
      check_random<float>(group, 0, ranks, static_cast<unsigned>(ranks));
      check_random<double>(group, 0, ranks, static_cast<unsigned>(10 + ranks));
    });
  }
}

TEST(OrderedAddition, MayCoverSomeRanksOfAGroup) {
  if (!has_ranks(4)) GTEST_SKIP() << "fewer than 4 processes";
  on_ranks(4, [&](Communicator& group) {
    check_random<float>(group, 1, 2, 20);
    check_random<float>(group, 2, 2, 21);
  });
}

// The rank in the middle has no part of the source or the target.
TEST(OrderedAddition, RanksWithoutAPartSendAndReceiveNothing) {
  if (!has_ranks(3)) GTEST_SKIP() << "fewer than 3 processes";
  const layout::Shape shape{5, 3};
  const Layout from = layout::rows_by_rank(shape, {{{0, 5}}, {}, {{1, 4}}});
  const Layout to = layout::rows_by_rank(shape, {{}, {}, {{0, 5}}});
  on_ranks(3, [&](Communicator& group) {
    for (const Start start : {Start::nothing, Start::target}) {
      Addition<float> one(group, from, to, {{0, 1, 2}, {DType::bf16, DType::bf16, DType::fp32}, DType::fp32},
                          group.rank(), start);
      std::vector<Send> sends;
      std::vector<Receive> receives;
      one.add_messages(sends, receives);
      EXPECT_EQ(sends.size(), group.rank() == 0 ? 1u : 0u);
      EXPECT_EQ(receives.size(), group.rank() == 2 ? 1u : 0u);
      group.exchange(std::move(sends), std::move(receives));
      one.sum();
      group.lane().record().synchronize();
      one.check();
    }
  });
}

// Blocks of stacked weights are contiguous in the local buffers, wherever they are in the logical matrix.
TEST(OrderedAddition, BoxesThatAreContiguousEverywhereAreSummedAtOnce) {
  const std::vector<layout::Block> blocks{{.name = "gate", .rows = 8}, {.name = "up", .rows = 8}};
  const layout::LocalLayout part = layout::cut_rows({16, 3}, blocks, 2).ranks[1];
  const Layout home{.shape = {16, 3}, .ranks = {part, part, part}, .state = layout::State::partial};
  const Layout whole{.shape = {16, 3}, .ranks = {part}};
  const OrderedAddition addition(home, layout::cut_local_rows(whole, 3), 1,
                                 {{0, 1, 2}, std::vector(3, DType::fp32), DType::fp32});
  EXPECT_EQ(layout::cut_local_rows(whole, 3).ranks[1].pieces.size(), 2u);
  EXPECT_EQ(addition.sums(), 1u);
}

TEST(OrderedAddition, ComputesTheSquaresOfRowsOfItsSums) {
  if (!has_ranks(2)) GTEST_SKIP() << "fewer than 2 processes";
  const layout::Shape shape{7, 5};
  // The first rank has no row 5, so the second rank's part of the target consists of several sums.
  const Layout from = partial(layout::rows_by_rank(shape, {{{0, 5}, {6, 7}}, {{0, 7}}})),
               to = layout::cut_rows(shape, {{.name = "all", .rows = 7}}, 2);
  on_ranks(2, [&](Communicator& group) {
    const int rank = group.rank();
    const OrderedAddition addition(from, to, rank, {{0, 1}, {DType::fp32, DType::fp32}, DType::fp32});
    const base::Device device = group.kernels().device();
    const Placed source(values_of<float>(rank, 0, 35), device);
    Placed<std::byte> scratch(static_cast<std::int64_t>(addition.scratch_bytes()), device);
    const std::int64_t rows = to.ranks[static_cast<std::size_t>(rank)].size / 5;
    Placed<float> target(rows * 5, device);
    Placed<double> squares(rows, device), expected(rows, device);
    std::vector<Send> sends;
    std::vector<Receive> receives;
    addition.add_messages(group, source.data(), scratch.data(), sends, receives);
    group.exchange(std::move(sends), std::move(receives));
    group.lane().run([&] {
      addition.sum(group.kernels(), source.data(), scratch.data(), target.data(), Start::nothing, squares.data());
      const void* part = target.data();  // squares of the finished sums
      group.kernels().ordered_sum_squares(target.data(), DType::fp32, false, {&part, 1}, DType::fp32, rows, 5,
                                          expected.data());
    });
    group.lane().record().synchronize();
    EXPECT_EQ(squares.values(), expected.values());
    EXPECT_GT(squares.values().front(), 0);
  });
}

TEST(OrderedAddition, RefusesAnotherOrderOfRanks) {
  const Layout from = partial(layout::replicated({2, 2}, 2)), to = layout::replicated({2, 2}, 2);
  for (const std::vector<int>& members : {std::vector{1, 0}, {1, 1}})
    EXPECT_THROW(OrderedAddition(from, to, 0, {members, {DType::fp32, DType::fp32}, DType::fp32}), Error);
}

TEST(OrderedAddition, RefusesOtherNumbersOfRanks) {
  const Layout from = partial(layout::replicated({2, 2}, 2)), to = layout::replicated({2, 2}, 2);
  EXPECT_THROW(OrderedAddition(from, to, 0, {{0}, {DType::fp32}, DType::fp32}), Error);
  EXPECT_THROW(OrderedAddition(from, to, 2, {{0, 1}, {DType::fp32, DType::fp32}, DType::fp32}), Error);
  EXPECT_THROW(OrderedAddition(from, from, 0, {{0, 1}, {DType::fp32, DType::fp32}, DType::fp32}), Error);
}

}  // namespace
}  // namespace tessera::comm
