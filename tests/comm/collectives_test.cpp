// Tests every collective over backends, ranks, sizes, types, and even and uneven counts. The expected values are
// computed on each rank alone. Sums are compared bit by bit with a plain sum in rank order.
#include <gtest/gtest.h>

#include <numeric>

#include "tessera/comm/communicator.h"
#include "tests/comm/placed.h"
#include "tests/comm/ranks.h"
#include "tests/comm/values.h"

namespace tessera::comm {
namespace {

using quant::bfloat16;
using Counts = std::vector<std::int64_t>;

template <typename T>
class Collectives : public testing::Test {
 protected:
  static constexpr quant::DType kType = TypeOf<T>::value;
  static constexpr bool kHasSum = !std::is_same_v<T, std::uint8_t>;

  // Calls body(group, count) over ranks and sizes. `count` is about the number of elements of one rank; the largest
  // total is about a million.
  template <typename Body>
  void for_all(Body body) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      if (!has_ranks(ranks)) continue;
      on_ranks(ranks, [&](Communicator& group) {
        for (const std::int64_t count : {0, 1, 3, 1000}) body(group, count);
        if (ranks == 3 || ranks == 8) body(group, (1 << 20) / ranks + 5);
      });
      // Threads: each member executes its own part of small operations too.
      if (world_of_tests() == nullptr)
        on_ranks(ranks,
                 [&](Communicator& group) {
                   for (const std::int64_t count : {0, 1, 3, 1000}) body(group, count);
                 },
                 {.small_bytes = -1});
    }
  }
  template <typename Body>
  void for_all_counts(Body body) {
    for_all([&](Communicator& group, std::int64_t count) {
      body(group, equal_counts(group.size(), count));
      body(group, uneven(group.size(), count));
    });
  }
  static Counts uneven(int ranks, std::int64_t count) {
    Counts counts;
    for (int r = 0; r < ranks; ++r) counts.push_back(r % 3 == 1 ? 0 : count * (r + 1) / ranks + r % 2);
    return counts;
  }
  static std::int64_t sum_of(const Counts& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  }

  // Returns the reduction over all ranks of the elements [begin, begin + count), element by element in rank order.
  static std::vector<T> reduced(int ranks, std::int64_t begin, std::int64_t count, ReduceOp op) {
    using Wide = std::conditional_t<std::is_same_v<T, bfloat16>, float, T>;
    std::vector<T> result;
    for (std::int64_t i = begin; i < begin + count; ++i) {
      auto value = static_cast<Wide>(value_of<T>(0, i));
      for (int r = 1; r < ranks; ++r) {
        const auto next = static_cast<Wide>(value_of<T>(r, i));
        if (op == ReduceOp::max) value = std::max(value, next);
        if (op == ReduceOp::min) value = std::min(value, next);
        if (op == ReduceOp::sum) value = added(value, next);
      }
      result.push_back(static_cast<T>(value));
    }
    return result;
  }
  template <typename Wide>
  static Wide added(Wide a, Wide b) {
    if constexpr (std::is_integral_v<Wide>)  // the integers wrap around
      return static_cast<Wide>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
    else
      return a + b;
  }
  static std::vector<ReduceOp> operations() {
    if (kHasSum) return {ReduceOp::sum, ReduceOp::max, ReduceOp::min};
    return {ReduceOp::max, ReduceOp::min};
  }
};
TYPED_TEST_SUITE(Collectives, AllTypes);

TYPED_TEST(Collectives, AllGatherHoldsEveryRanksPartInRankOrder) {
  using T = TypeParam;
  this->for_all_counts([](Communicator& group, const Counts& counts) {
    const std::int64_t own = counts[static_cast<std::size_t>(group.rank())];
    const Placed send(values_of<T>(group.rank(), 0, own));
    std::vector<T> expected;
    Placed<T> recv(TestFixture::sum_of(counts));
    for (int r = 0; r < group.size(); ++r)
      for (std::int64_t i = 0; i < counts[static_cast<std::size_t>(r)]; ++i) expected.push_back(value_of<T>(r, i));
    group.all_gather(send.data(), recv.data(), counts, TestFixture::kType).synchronize();
    EXPECT_TRUE(same_bits(recv.values(), expected));

    std::vector<T> own_only(expected.size());
    const auto begin = std::accumulate(counts.begin(), counts.begin() + group.rank(), std::int64_t{0});
    std::copy_n(expected.begin() + begin, own, own_only.begin() + begin);
    Placed in_place(own_only);
    group.all_gather(in_place.data() + begin, in_place.data(), counts, TestFixture::kType).synchronize();
    EXPECT_TRUE(same_bits(in_place.values(), expected));
  });
}

TYPED_TEST(Collectives, AllToAllMovesEachPairsPart) {
  using T = TypeParam;
  this->for_all([](Communicator& group, std::int64_t count) {
    for (const bool even : {true, false}) {
      // The number of elements that rank r sends to rank p. Every pair has another number, some send nothing, and ranks
      // also send to themselves.
      const auto size = [&](int r, int p) {
        return even ? count / group.size() : (r + 2 * p) % 3 * count / (r + p + 2);
      };
      Counts send_counts, recv_counts;
      std::vector<T> send, expected;
      for (int peer = 0; peer < group.size(); ++peer) {
        send_counts.push_back(size(group.rank(), peer));
        recv_counts.push_back(size(peer, group.rank()));
        const auto sent = values_of<T>(group.rank(), 1000 * peer, send_counts.back());
        const auto received = values_of<T>(peer, 1000 * group.rank(), recv_counts.back());
        send.insert(send.end(), sent.begin(), sent.end());
        expected.insert(expected.end(), received.begin(), received.end());
      }
      const Placed from(send);
      Placed<T> recv(static_cast<std::int64_t>(expected.size()));
      group.all_to_all(from.data(), send_counts, recv.data(), recv_counts, TestFixture::kType).synchronize();
      EXPECT_TRUE(same_bits(recv.values(), expected));
    }
  });
}

TYPED_TEST(Collectives, ReduceScatterSumsOwnPartInRankOrder) {
  using T = TypeParam;
  this->for_all_counts([](Communicator& group, const Counts& counts) {
    const std::int64_t begin = std::accumulate(counts.begin(), counts.begin() + group.rank(), std::int64_t{0});
    const std::int64_t own = counts[static_cast<std::size_t>(group.rank())];
    const Placed send(values_of<T>(group.rank(), 0, TestFixture::sum_of(counts)));
    for (const ReduceOp op : TestFixture::operations()) {
      const auto expected = TestFixture::reduced(group.size(), begin, own, op);
      Placed<T> recv(own);
      group.reduce_scatter(send.data(), recv.data(), counts, TestFixture::kType, op).synchronize();
      EXPECT_TRUE(same_bits(recv.values(), expected));

      Placed in_place(send.values());
      group.reduce_scatter(in_place.data(), in_place.data() + begin, counts, TestFixture::kType, op).synchronize();
      const auto all = in_place.values();
      EXPECT_TRUE(same_bits({all.begin() + begin, all.begin() + begin + own}, expected));
    }
  });
}

TYPED_TEST(Collectives, AllReduceGivesEveryRankTheSumInRankOrder) {
  using T = TypeParam;
  this->for_all([](Communicator& group, std::int64_t count) {
    for (const ReduceOp op : TestFixture::operations()) {
      Placed data(values_of<T>(group.rank(), 0, count));
      group.all_reduce(data.data(), count, TestFixture::kType, op).synchronize();
      EXPECT_TRUE(same_bits(data.values(), TestFixture::reduced(group.size(), 0, count, op)));
    }
  });
}

TYPED_TEST(Collectives, BroadcastCopiesFromTheRoot) {
  using T = TypeParam;
  this->for_all([](Communicator& group, std::int64_t count) {
    for (int root = 0; root < group.size(); ++root) {
      Placed data(values_of<T>(group.rank(), 0, count));
      group.broadcast(data.data(), count, TestFixture::kType, root).synchronize();
      EXPECT_TRUE(same_bits(data.values(), values_of<T>(root, 0, count)));
      if (count > 100000) break;
    }
  });
}

TYPED_TEST(Collectives, ExchangeMatchesMessagesInOrder) {
  using T = TypeParam;
  this->for_all([](Communicator& group, std::int64_t count) {
    // Sends two messages and an empty one to each of the next ranks, this rank included. The second message is longer.
    std::vector<Placed<T>> sent, received;
    std::vector<std::vector<T>> expected;
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (int step = 0; step < std::min(group.size(), 3); ++step) {
      const int to = (group.rank() + step) % group.size(), from = (group.rank() - step + group.size()) % group.size();
      for (const std::int64_t size : {count / 3, std::int64_t{0}, count / 3 + 1}) {
        sent.emplace_back(values_of<T>(group.rank(), to + size, size));
        expected.push_back(values_of<T>(from, group.rank() + size, size));
        received.emplace_back(size);
        const std::size_t bytes = static_cast<std::size_t>(size) * sizeof(T);
        sends.push_back({.peer = to, .data = sent.back().data(), .bytes = bytes});
        receives.push_back({.peer = from, .data = received.back().data(), .bytes = bytes});
      }
    }
    group.exchange(sends, receives).synchronize();
    for (std::size_t i = 0; i < received.size(); ++i) EXPECT_TRUE(same_bits(received[i].values(), expected[i]));
  });
}

// Needs 16 GB of memory. Run manually with --gtest_also_run_disabled_tests.
TEST(CollectiveSize, DISABLED_PartsOfMoreThan2To31Elements) {
  constexpr std::int64_t per_rank = (std::int64_t{1} << 31) + 12345;
  on_ranks(2, [&](Communicator& group) {
    const auto at = [](std::int64_t i) { return value_of<std::uint8_t>(7, i); };
    std::vector<std::uint8_t> data(static_cast<std::size_t>(per_rank) * 2);
    const std::int64_t begin = group.rank() * per_rank;
    for (std::int64_t i = 0; i < per_rank; i += 1009) data[static_cast<std::size_t>(begin + i)] = at(begin + i);
    group.all_gather(data.data() + begin, data.data(), equal_counts(2, per_rank), quant::DType::u8).synchronize();
    std::int64_t wrong = 0;
    for (int r = 0; r < 2; ++r)
      for (std::int64_t i = 0; i < per_rank; i += 1009)
        wrong += data[static_cast<std::size_t>(r * per_rank + i)] != at(r * per_rank + i);
    EXPECT_EQ(wrong, 0);
  });
}

TEST(CollectiveOrder, OperationsOfOneGroupRunInOrderWithoutHostWaits) {
  constexpr std::int64_t per_rank = 5000;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    if (!has_ranks(ranks)) continue;
    on_ranks(ranks, [&](Communicator& group) {
      Placed data(std::vector<std::int64_t>(per_rank, 1));
      base::Fence last;
      for (int i = 0; i < 12; ++i) last = group.all_reduce(data.data(), per_rank, quant::DType::i64);
      group.barrier();
      last.synchronize();
      std::int64_t expected = 1;
      for (int i = 0; i < 12; ++i) expected *= group.size();
      EXPECT_EQ(data.values(), std::vector<std::int64_t>(per_rank, expected));
    });
  }
}

TEST(CollectiveOrder, WorkOnTheLaneRunsBetweenOperations) {
  if (!has_ranks(2)) GTEST_SKIP() << "fewer than 2 processes";
  on_ranks(2, [&](Communicator& group) {
    const auto& kernels = group.kernels();
    Placed mine(std::vector<float>(100, static_cast<float>(group.rank() + 1)), kernels.device());
    const Placed half(std::vector<float>(1, 0.5f), kernels.device());
    Placed<float> all(200, kernels.device());
    const auto add = [&](Placed<float>& sum, const Placed<float>& part, std::int64_t count) {
      group.lane().run([&, count] {
        const void* data = part.data();
        kernels.ordered_sum(sum.data(), quant::DType::fp32, true, std::span(&data, 1), quant::DType::fp32, count);
      });
    };
    add(mine, mine, 100);
    group.all_gather(mine.data(), all.data(), equal_counts(2, 100), quant::DType::fp32);
    add(all, half, 1);
    group.lane().synchronize();
    const auto values = all.values();
    EXPECT_EQ(values[0], 2.5f);
    EXPECT_EQ(values[1], 2.0f);
    EXPECT_EQ(values[199], 4.0f);
  });
}

}  // namespace
}  // namespace tessera::comm
