#include "tessera/shard/rows/row_kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "tessera/base/cuda_only.h"
#include "tessera/quant/elementwise.h"
#include "tessera/shard/plane.h"

namespace tessera::shard {
namespace {

template <typename T>
bool holds_negative_zero(const std::byte* row, std::int64_t columns) {
  const auto* values = reinterpret_cast<const T*>(row);
  return std::any_of(values, values + columns, [](T value) { return value == 0 && std::signbit(value); });
}

bool holds_negative_zero(const std::byte* row, std::int64_t columns, quant::DType type) {
  return type == quant::DType::fp64 ? holds_negative_zero<double>(row, columns)
                                    : holds_negative_zero<float>(row, columns);
}

// Implements the sum of rows on the host, one row after another.
class HostRowSum {
 public:
  explicit HostRowSum(const RowSum& sum)
      : a_(sum),
        part_bytes_(to_size(bytes_of(sum.columns, sum.wire))),
        row_bytes_(to_size(bytes_of(sum.columns, sum.accumulator))),
        zeros_(part_bytes_),
        node_(row_bytes_),
        parts_(to_size(sum.ranks)) {}

  void run() {
    fill_map();
    for (std::int64_t row = 0; row < a_.count; ++row) add_row(row);
  }

 private:
  void fill_map() {
    std::fill_n(a_.map, a_.count * a_.ranks, -1);
    for (int rank = 0; rank < a_.ranks; ++rank)
      for (std::int64_t at = 0; at < a_.most; ++at) {
        const std::int64_t row = a_.indices.of(rank)[at] - a_.begin;
        if (row >= 0 && row < a_.count) a_.map[row * a_.ranks + rank] = static_cast<std::int32_t>(at);
      }
  }

  void add_row(std::int64_t row) {
    const std::span<const std::int32_t> places(a_.map + row * a_.ranks, to_size(a_.ranks));
    const bool is_given = std::ranges::any_of(places, [](std::int32_t at) { return at >= 0; });
    std::uint8_t& state = a_.states[row];
    std::byte* sum = static_cast<std::byte*>(a_.sum) + to_size(row) * row_bytes_;
    if (!is_given && !a_.accumulate) {
      if (state != 0 || a_.clear) std::memset(sum, 0, row_bytes_);
      state = 0;
      return;
    }
    if (!is_given && (state & kRowHasNegativeZero) == 0) return;
    for (int rank = 0; rank < a_.ranks; ++rank) {
      const std::int32_t at = places[to_size(rank)];
      parts_[to_size(rank)] = at < 0 ? zeros_.data() : a_.rows.of(rank) + to_size(at) * part_bytes_;
    }
    add_parts(sum);
    state = kRowWritten;
    if (holds_negative_zero(sum, a_.columns, a_.accumulator)) state |= kRowHasNegativeZero;
  }

  void add_parts(std::byte* sum) {
    bool accumulate = a_.accumulate;
    for (int first = 0; first < a_.ranks; first += a_.node) {
      const auto members = std::span<const void* const>(parts_)
                               .subspan(to_size(first))
                               .first(to_size(std::min(a_.node, a_.ranks - first)));
      if (members.size() == 1) {
        quant::ordered_sum(sum, a_.accumulator, accumulate, members, a_.wire, a_.columns);
      } else {
        quant::ordered_sum(node_.data(), a_.accumulator, false, members, a_.wire, a_.columns);
        const std::array<const void*, 1> of_node{node_.data()};
        quant::ordered_sum(sum, a_.accumulator, accumulate, of_node, a_.accumulator, a_.columns);
      }
      accumulate = true;
    }
  }

  const RowSum& a_;
  const std::size_t part_bytes_, row_bytes_;
  std::vector<std::byte> zeros_, node_;
  std::vector<const void*> parts_;  // index: rank
};

class HostRowKernels final : public RowKernels {
 public:
  void list(const RowIds& ids, std::int64_t rows, std::int64_t* list, std::int64_t most) const override {
    for (std::int64_t at = 0; at < most; ++at) list[at] = ids.row(at, rows);
  }

  void find_slots(const RowSlots& a) const override {
    std::fill_n(a.map, a.rows, -1);
    for (std::int64_t at = 0; at < a.most; ++at) {
      const std::int64_t row = a.ids.row(at, a.rows);
      const bool is_first = row >= 0 && a.map[row] < 0;
      if (is_first) a.map[row] = static_cast<std::int32_t>(at);
      a.firsts[at] = is_first ? row : -1;
      if (at < a.ids.count) a.slots[at] = row >= 0 ? a.map[row] : -1;
    }
  }

  void give(const RowReading& a) const override {
    const ByRank<std::byte> messages{.others = a.messages, .size = a.most * a.row_bytes, .rank = a.rank};
    for (int rank = 0; rank < a.ranks; ++rank)
      for (std::int64_t at = 0; at < a.most && rank != a.rank; ++at) {
        const std::int64_t row = a.requested[rank * a.most + at];
        if (a.is_own(row))
          std::memcpy(messages.of(rank) + at * a.row_bytes, a.stored + (row - a.begins[a.rank]) * a.row_bytes,
                      to_size(a.row_bytes));
      }
  }

  void take(const RowReading& a) const override {
    const ByRank<std::byte> messages{.others = a.messages, .size = a.most * a.row_bytes, .rank = a.rank};
    for (std::int64_t at = 0; at < a.count; ++at) {
      std::byte* to = a.out + at * a.row_bytes;
      const std::int64_t row = a.requested[a.rank * a.most + at];
      if (row < 0)
        std::memset(to, 0, to_size(a.row_bytes));
      else if (a.is_own(row))
        std::memcpy(to, a.stored + (row - a.begins[a.rank]) * a.row_bytes, to_size(a.row_bytes));
      else
        std::memcpy(to, messages.of(a.owner_of(row)) + at * a.row_bytes, to_size(a.row_bytes));
    }
  }

  void sum(const RowSum& sum) const override { HostRowSum(sum).run(); }
};

}  // namespace

std::unique_ptr<RowKernels> make_row_kernels(base::Device device, base::CudaStream stream) {
  if (device.kind == base::DeviceKind::cuda) return base::cuda_only<detail::make_cuda_row_kernels>(device, stream);
  return std::make_unique<HostRowKernels>();
}

}  // namespace tessera::shard
