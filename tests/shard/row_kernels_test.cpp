// Compares the kernels for rows with plain loops, bit by bit, on the host and on a device.
#include "tessera/shard/rows/row_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/lanes/cuda_lane.h"
#include "tessera/base/memory/buffer.h"
#include "tessera/quant/elementwise.h"

namespace tessera::shard {
namespace {

using base::Device;
using quant::DType;

// Values in the memory of a device.
template <typename T>
class Placed {
 public:
  Placed(const std::vector<T>& values, Device device) : count_(values.size()), memory_(count_ * sizeof(T), device) {
    write(values);
  }
  T* data() { return reinterpret_cast<T*>(memory_.data()); }
  void write(const std::vector<T>& values) { base::copy_bytes(memory_.data(), values.data(), memory_.size()); }
  std::vector<T> values() const {
    std::vector<T> values(count_);
    base::copy_bytes(values.data(), memory_.data(), memory_.size());
    return values;
  }

 private:
  std::size_t count_;
  base::Buffer memory_;
};

std::uint64_t mixed(std::int64_t a, std::int64_t b = 0, std::int64_t c = 0) {
  auto h = static_cast<std::uint64_t>((a * 7919 + b) * 104729 + c + 1) * 0x9E3779B97F4A7C15u;
  return (h ^ h >> 29) * 0xBF58476D1CE4E5B9u >> 17;
}

class RowKernelsOn : public testing::TestWithParam<base::DeviceKind> {
 protected:
  void SetUp() override {
    if (GetParam() == base::DeviceKind::cuda && base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
    lane_ = device_.kind == base::DeviceKind::cuda ? base::make_cuda_lane("rows", device_) : base::make_inline_lane();
    kernels_ = make_row_kernels(device_, lane_->stream());
  }

  const Device device_{.kind = GetParam()};
  std::unique_ptr<base::Lane> lane_;
  std::unique_ptr<RowKernels> kernels_;
};

// Returns the row of each id, or -1 if the id is outside the part [first, first + rows).
std::vector<std::int64_t> rows_of(const std::vector<std::int64_t>& ids, std::int64_t first, std::int64_t rows) {
  std::vector<std::int64_t> found;
  for (const std::int64_t id : ids) found.push_back(id >= first && id < first + rows ? id - first : -1);
  return found;
}

TEST_P(RowKernelsOn, EqualRowsShareTheSlotOfTheFirst) {
  for (const std::int64_t count : {0, 1, 5, 255, 256, 1000})
    for (const std::int64_t rows : {0, 1, 40, 5000}) {
      const std::int64_t first = 13, most = count + 3;
      std::vector<std::int64_t> ids;
      for (std::int64_t i = 0; i < count; ++i)
        ids.push_back(static_cast<std::int64_t>(mixed(i, rows) % static_cast<std::uint64_t>(rows + 20)));
      std::vector<std::int64_t> expected = rows_of(ids, first, rows), firsts, slots;
      for (auto at = expected.begin(); at != expected.end(); ++at) {
        const std::int64_t place = std::find(expected.begin(), at, *at) - expected.begin();
        slots.push_back(*at < 0 ? -1 : place);
        firsts.push_back(place == at - expected.begin() ? *at : -1);
      }
      expected.resize(static_cast<std::size_t>(most), -1);
      firsts.resize(static_cast<std::size_t>(most), -1);

      Placed given(ids, device_), list(std::vector<std::int64_t>(expected.size(), 7), device_);
      Placed found_firsts(std::vector<std::int64_t>(expected.size(), 7), device_);
      Placed found_slots(std::vector<std::int64_t>(slots.size(), 7), device_);
      Placed map(std::vector<std::int32_t>(static_cast<std::size_t>(rows), 7), device_);
      const RowIds wanted{.data = given.data(), .count = count, .first = first};
      kernels_->list(wanted, rows, list.data(), most);
      kernels_->find_slots({.ids = wanted,
                            .rows = rows,
                            .most = most,
                            .map = map.data(),
                            .firsts = found_firsts.data(),
                            .slots = found_slots.data()});
      lane_->synchronize();
      EXPECT_EQ(list.values(), expected) << count << " of " << rows;
      EXPECT_EQ(found_firsts.values(), firsts) << count << " of " << rows;
      EXPECT_EQ(found_slots.values(), slots) << count << " of " << rows;
    }
}

// Every rank runs give(), and this test copies the messages between the ranks. The results of take() must equal the
// rows of the table.
TEST_P(RowKernelsOn, GiveAndTakeReturnRowsOfTheTable) {
  const std::vector<std::int64_t> begins{0, 9, 9, 30, 31};  // one rank stores nothing
  const int ranks = 4;
  const std::int64_t most = 21;
  for (const std::int64_t row_bytes : {1, 2, 6, 8, 12, 16, 48, 8192, 8194}) {
    const auto bytes = static_cast<std::size_t>(row_bytes);
    std::vector<std::byte> table(31 * bytes);
    for (std::size_t i = 0; i < table.size(); ++i)
      table[i] = static_cast<std::byte>(mixed(static_cast<std::int64_t>(i)));
    std::vector<std::int64_t> requested;
    for (std::int64_t i = 0; i < ranks * most; ++i) requested.push_back(static_cast<std::int64_t>(mixed(i) % 33) - 1);
    std::ranges::replace(requested, 31, -1);
    Placed all_requested(requested, device_), all_begins(begins, device_);
    const std::size_t message = static_cast<std::size_t>(most) * bytes;
    std::vector<std::vector<std::byte>> sent;
    std::vector<RowReading> readings;
    std::vector<Placed<std::byte>> stored, messages, outs;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      stored.emplace_back(
          std::vector(table.begin() + begins[at] * row_bytes, table.begin() + begins[at + 1] * row_bytes), device_);
      messages.emplace_back(std::vector<std::byte>((ranks - 1) * message, std::byte{0x5A}), device_);
      outs.emplace_back(std::vector<std::byte>(message, std::byte{0x5A}), device_);
      readings.push_back({.most = most,
                          .row_bytes = row_bytes,
                          .ranks = ranks,
                          .rank = rank,
                          .begins = all_begins.data(),
                          .requested = all_requested.data(),
                          .stored = stored.back().data(),
                          .messages = messages.back().data(),
                          .count = most - 2,
                          .out = outs.back().data()});
      kernels_->give(readings.back());
      lane_->synchronize();
      sent.push_back(messages.back().values());
    }
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<std::byte> arrived;
      for (int peer = 0; peer < ranks; ++peer) {
        const auto from = sent[static_cast<std::size_t>(peer)].begin() +
                          static_cast<std::ptrdiff_t>(message) * (rank < peer ? rank : rank - 1);
        if (peer != rank) arrived.insert(arrived.end(), from, from + static_cast<std::ptrdiff_t>(message));
      }
      const auto at = static_cast<std::size_t>(rank);
      messages[at].write(arrived);
      kernels_->take(readings[at]);
      lane_->synchronize();
      std::vector<std::byte> expected(message, std::byte{0x5A});
      for (std::int64_t i = 0; i < most - 2; ++i) {
        const std::int64_t row = requested[static_cast<std::size_t>(rank * most + i)];
        std::memset(&expected[static_cast<std::size_t>(i) * bytes], 0, bytes);
        if (row >= 0)
          std::memcpy(&expected[static_cast<std::size_t>(i) * bytes], &table[static_cast<std::size_t>(row) * bytes],
                      bytes);
      }
      EXPECT_TRUE(outs[at].values() == expected) << "rank " << rank << ", rows of " << row_bytes << " bytes";
    }
  }
}

// One shape of a sum, over rounds of steps and their microbatches.
struct SumCase {
  DType wire = DType::fp32, accumulator = DType::fp32;
  std::int64_t columns = 1;
  int ranks = 1, node = 1;
  bool clear = false;
};

// The messages of the ranks for rows of a table, and the main_grad that results from gradients of the whole table.
class Sums {
 public:
  // The table has kRows rows. This rank stores kCount of them, from row kBegin on.
  static constexpr std::int64_t kRows = 50, kBegin = 17, kCount = 21, kCapacity = 12;

  Sums(const SumCase& chosen, int rank, Device device)
      : case_(chosen),
        rank_(rank),
        part_(static_cast<std::size_t>(kCapacity * chosen.columns) * quant::size_of(chosen.wire)),
        expected_(static_cast<std::size_t>(kCount * chosen.columns) * quant::size_of(chosen.accumulator)),
        sum_(expected_, device),
        states_(std::vector<std::uint8_t>(kCount), device),
        map_(std::vector<std::int32_t>(static_cast<std::size_t>(kCount * chosen.ranks), 7), device),
        own_indices_(std::vector<std::int64_t>(kCapacity), device),
        indices_(std::vector<std::int64_t>(static_cast<std::size_t>(kCapacity * (chosen.ranks - 1))), device),
        own_rows_(std::vector<std::byte>(part_), device),
        rows_(std::vector<std::byte>(part_ * static_cast<std::size_t>(chosen.ranks - 1)), device) {}

  // Makes the rows of the messages, and the gradients of all stored rows that contain the same rows.
  void make_round(int round) {
    const std::size_t element = quant::size_of(case_.wire);
    std::vector<std::int64_t> others;
    std::vector<std::byte> other_rows;
    dense_.assign(static_cast<std::size_t>(case_.ranks),
                  std::vector<std::byte>(static_cast<std::size_t>(kCount * case_.columns) * element));
    for (int rank = 0; rank < case_.ranks; ++rank) {
      const std::vector<std::int64_t> list = rows_in(round, rank);
      std::vector<std::byte> rows(part_, std::byte{0xFF});  // NaN at places that kernels must not read
      for (std::int64_t at = 0; at < kCapacity; ++at) {
        const std::int64_t row = list[static_cast<std::size_t>(at)];
        if (row < 0) continue;
        std::byte* to = &rows[static_cast<std::size_t>(at * case_.columns) * element];
        for (std::int64_t column = 0; column < case_.columns; ++column) {
          const double value = value_of(round, rank, row, column);
          quant::cast(&value, DType::fp64, to + static_cast<std::size_t>(column) * element, case_.wire, 1);
        }
        if (row >= kBegin && row < kBegin + kCount)
          std::memcpy(&dense_[static_cast<std::size_t>(rank)]
                             [static_cast<std::size_t>((row - kBegin) * case_.columns) * element],
                      to, static_cast<std::size_t>(case_.columns) * element);
      }
      if (rank == rank_) own_indices_.write(list);
      if (rank == rank_) own_rows_.write(rows);
      if (rank != rank_) others.insert(others.end(), list.begin(), list.end());
      if (rank != rank_) other_rows.insert(other_rows.end(), rows.begin(), rows.end());
    }
    indices_.write(others);
    rows_.write(other_rows);
  }

  void add(const RowKernels& kernels, bool accumulate) {
    kernels.sum({.wire = case_.wire,
                 .accumulator = case_.accumulator,
                 .columns = case_.columns,
                 .most = kCapacity,
                 .ranks = case_.ranks,
                 .node = case_.node,
                 .begin = kBegin,
                 .count = kCount,
                 .indices = {own_indices_.data(), indices_.data(), kCapacity, rank_},
                 .rows = {own_rows_.data(), rows_.data(), static_cast<std::int64_t>(part_), rank_},
                 .map = map_.data(),
                 .states = states_.data(),
                 .sum = sum_.data(),
                 .accumulate = accumulate,
                 .clear = case_.clear});
    for (int first = 0; first < case_.ranks; first += case_.node) {
      std::vector<const void*> members;
      for (int rank = first; rank < std::min(first + case_.node, case_.ranks); ++rank)
        members.push_back(dense_[static_cast<std::size_t>(rank)].data());
      std::vector<std::byte> of_node(expected_.size());
      const std::int64_t elements = kCount * case_.columns;
      DType type = case_.wire;
      if (members.size() > 1) {
        quant::ordered_sum(of_node.data(), case_.accumulator, false, members, type, elements);
        members = {of_node.data()};
        type = case_.accumulator;
      }
      quant::ordered_sum(expected_.data(), case_.accumulator, accumulate || first > 0, members, type, elements);
    }
  }

  // Sets main_grad as if another replica had written it.
  void add_of_others() {
    std::memset(expected_.data(), 0x40, expected_.size());
    sum_.write(expected_);
  }
  bool is_right() const { return sum_.values() == expected_; }
  bool has_negative_zeros() const {
    std::vector<std::byte> zero(quant::size_of(case_.accumulator));
    zero.back() = std::byte{0x80};
    for (std::size_t at = 0; at < expected_.size(); at += zero.size())
      if (std::memcmp(&expected_[at], zero.data(), zero.size()) == 0) return true;
    return false;
  }

 private:
  // Returns distinct rows, in a different order in every round. Most rows are absent. Row 20 is always present.
  static std::vector<std::int64_t> rows_in(int round, int rank) {
    std::vector<std::int64_t> rows;
    for (std::int64_t row = 0; row < kRows; ++row)
      if (static_cast<std::int64_t>(rows.size()) < kCapacity && (row == 20 || mixed(round, rank, row) % 5 == 0))
        rows.push_back(row);
    rows.resize(kCapacity, -1);
    std::rotate(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(mixed(round, rank) % kCapacity), rows.end());
    return rows;
  }
  static double value_of(int round, int rank, std::int64_t row, std::int64_t column) {
    if (column == 0 && row % 4 == 0) return -0.0;
    const std::uint64_t bits = mixed(round * 100 + rank, row, column);
    return std::ldexp(static_cast<double>(bits % 8191), static_cast<int>(bits >> 20 & 15) - 20) *
           (bits >> 30 & 1 ? 1 : -1);
  }

  const SumCase case_;
  const int rank_;
  const std::size_t part_;  // number of bytes of a message
  std::vector<std::vector<std::byte>> dense_;
  std::vector<std::byte> expected_;
  Placed<std::byte> sum_;
  Placed<std::uint8_t> states_;
  Placed<std::int32_t> map_;
  Placed<std::int64_t> own_indices_, indices_;
  Placed<std::byte> own_rows_, rows_;
};

TEST_P(RowKernelsOn, SumsEqualThoseOfWholeGradients) {
  bool negative_zeros = false;
  for (const auto& [wire, accumulator] :
       {std::pair{DType::bf16, DType::fp32}, {DType::fp32, DType::fp32}, {DType::fp64, DType::fp64}})
    for (const std::int64_t columns : {1, 3, 8, 40, 264, 1000})
      for (const int ranks : {1, 2, 3, 8})
        for (const int node : {1, 2, 3, 8}) {
          if (node > ranks) continue;
          const bool clear = columns == 3 || columns == 40;
          Sums sums({wire, accumulator, columns, ranks, node, clear}, (columns + node) % ranks, device_);
          for (int round = 0; round < 9; ++round) {
            const bool accumulate = round % 4 != 0;
            if (!accumulate && clear) sums.add_of_others();
            sums.make_round(round);
            sums.add(*kernels_, accumulate);
            lane_->synchronize();
            ASSERT_TRUE(sums.is_right()) << name_of(wire) << ", " << columns << " columns, " << ranks
                                         << " ranks in nodes of " << node << ", round " << round;
            negative_zeros |= sums.has_negative_zeros();
          }
        }
  EXPECT_TRUE(negative_zeros);
}

TEST_P(RowKernelsOn, SumsRefuseOtherTypes) {
  std::int64_t none = 0;
  Placed memory(std::vector<std::int64_t>(64), device_);
  RowSum sum{.wire = DType::i32,
             .columns = 1,
             .most = 1,
             .count = 1,
             .indices = {memory.data(), &none, 1, 0},
             .rows = {reinterpret_cast<std::byte*>(memory.data()), nullptr, 4, 0},
             .map = reinterpret_cast<std::int32_t*>(memory.data() + 16),
             .states = reinterpret_cast<std::uint8_t*>(memory.data() + 32),
             .sum = memory.data() + 48};
  EXPECT_THROW(kernels_->sum(sum), Error);
  sum.wire = DType::fp32;
  sum.accumulator = DType::bf16;
  EXPECT_THROW(kernels_->sum(sum), Error);
}

INSTANTIATE_TEST_SUITE_P(Devices, RowKernelsOn, testing::Values(base::DeviceKind::cpu, base::DeviceKind::cuda),
                         [](const auto& info) { return info.param == base::DeviceKind::cpu ? "cpu" : "cuda"; });

}  // namespace
}  // namespace tessera::shard
