#include "tessera/shard/rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/kernels.h"

namespace tessera::shard {
namespace {

std::int64_t aligned(std::int64_t bytes) {
  return static_cast<std::int64_t>(base::align_up(static_cast<std::size_t>(bytes)));
}

std::size_t size(std::int64_t bytes) {
  return static_cast<std::size_t>(bytes);
}

std::int64_t rounded_bytes(const RowMessages& messages, const ParameterTypes& types) {
  return types.wire != types.accumulator ? aligned(messages.row_bytes(types.wire)) : 0;
}

template <typename T>
bool holds_negative_zero(const std::byte* row, std::int64_t columns) {
  const auto* values = reinterpret_cast<const T*>(row);
  return std::any_of(values, values + columns, [](T value) { return value == 0 && std::signbit(value); });
}

bool holds_negative_zero(const std::byte* row, std::int64_t columns, base::DType type) {
  return type == base::DType::fp64 ? holds_negative_zero<double>(row, columns)
                                   : holds_negative_zero<float>(row, columns);
}

}  // namespace

RowMessages messages_of(const ParameterSpec& spec, int ranks) {
  return {.rows = spec.reads.per_microbatch, .columns = spec.compute.shape.cols, .ranks = ranks};
}

std::int64_t RowMessages::row_bytes(base::DType type) const {
  return rows * columns * static_cast<std::int64_t>(base::size_of(type));
}

std::int64_t RowMessages::index_bytes() const {
  return rows * static_cast<std::int64_t>(sizeof(std::int64_t));
}

std::int64_t RowMessages::staging(const ParameterTypes& types) const {
  return aligned(row_bytes(types.accumulator)) + aligned(index_bytes());
}

std::int64_t RowMessages::scratch(const ParameterTypes& types) const {
  return rounded_bytes(*this, types) + aligned((ranks - 1) * row_bytes(types.wire)) +
         aligned((ranks - 1) * index_bytes());
}

RowOwners::RowOwners(const ShardedParameter& parameter, const Parallel& parallel) : rank_(parallel.gtp_rank()) {
  begins_.push_back(0);
  for (int rank = 0; rank < parallel.gtp_size(); ++rank) {
    const int stored = parallel.tp_rank() + parallel.tp_size() * rank;
    const std::int64_t elements = parameter.storage.ranks[static_cast<std::size_t>(stored)].size;
    begins_.push_back(begins_.back() + elements / parameter.spec.compute.shape.cols);
  }
}

int RowOwners::owner_of(std::int64_t row) const {
  return static_cast<int>(std::upper_bound(begins_.begin(), begins_.end(), row) - begins_.begin()) - 1;
}

layout::Range RowOwners::owned(int rank) const {
  const auto at = static_cast<std::size_t>(rank);
  return {begins_[at], begins_[at + 1]};
}

RowGather::RowGather(const ShardedParameter& parameter, const Parallel& parallel)
    : messages_(messages_of(parameter.spec, parallel.gtp_size())),
      owners_(parameter, parallel),
      type_(parameter.types.model),
      row_bytes_(size(messages_.columns) * base::size_of(type_)) {}

base::Fence RowGather::start(const ShardedParameter& parameter, comm::Communicator& gtp,
                             std::span<const std::int64_t> indices, void* out) {
  TESSERA_CHECK(indices.size() <= size(messages_.rows), "'{}': {} rows are read, at most {} a microbatch",
                parameter.spec.name, indices.size(), messages_.rows);
  for (const std::int64_t index : indices)
    TESSERA_CHECK(index >= -1 && index < owners_.rows(), "'{}': row {} of {} is read", parameter.spec.name, index,
                  owners_.rows());
  const std::size_t ranks = size(owners_.ranks()), message = size(messages_.row_bytes(type_));
  if (asked_.size() == 0) {
    asked_ = base::Buffer(ranks * size(messages_.index_bytes()));
    sent_ = base::Buffer((ranks - 1) * message);
    arrived_ = base::Buffer((ranks - 1) * message);
  }
  std::int64_t* own = asked(owners_.rank());
  std::fill(std::copy(indices.begin(), indices.end(), own), own + messages_.rows, -1);

  base::Lane& lane = gtp.lane();
  lane.wait(parameter.published);
  gtp.all_gather(own, asked_.data(), comm::equal_counts(owners_.ranks(), messages_.rows), base::DType::i64);
  lane.run([this, &parameter] { pack(parameter); });
  std::vector<comm::Send> sends;
  std::vector<comm::Receive> receives;
  for (int rank = 0; rank < owners_.ranks(); ++rank) {
    if (rank == owners_.rank()) continue;
    sends.push_back({rank, sent_.data() + owners_.peer(rank) * message, message});
    receives.push_back({rank, arrived_.data() + owners_.peer(rank) * message, message});
  }
  gtp.exchange(std::move(sends), std::move(receives));
  lane.run([this, &parameter, count = indices.size(), out] { unpack(parameter, count, static_cast<std::byte*>(out)); });
  return lane.record();
}

// Each row at the place of its index.
void RowGather::pack(const ShardedParameter& parameter) {
  const layout::Range own = owners_.owned(owners_.rank());
  for (int rank = 0; rank < owners_.ranks(); ++rank) {
    if (rank == owners_.rank()) continue;
    std::byte* message = sent_.data() + owners_.peer(rank) * size(messages_.row_bytes(type_));
    for (std::int64_t at = 0; at < messages_.rows; ++at) {
      const std::int64_t row = asked(rank)[at];
      if (row < own.begin || row >= own.end) continue;
      std::memcpy(message + size(at) * row_bytes_, parameter.weight.data() + size(row - own.begin) * row_bytes_,
                  row_bytes_);
    }
  }
}

void RowGather::unpack(const ShardedParameter& parameter, std::size_t count, std::byte* out) const {
  const std::int64_t* own = asked_.as<std::int64_t>().data() + owners_.rank() * messages_.rows;
  for (std::size_t at = 0; at < count; ++at) {
    std::byte* to = out + at * row_bytes_;
    if (own[at] < 0) {
      std::memset(to, 0, row_bytes_);
      continue;
    }
    const int owner = owners_.owner_of(own[at]);
    const std::byte* from = arrived_.data();
    if (owner == owners_.rank())
      from = parameter.weight.data() + size(own[at] - owners_.owned(owner).begin) * row_bytes_;
    else
      from += owners_.peer(owner) * size(messages_.row_bytes(type_)) + at * row_bytes_;
    std::memcpy(to, from, row_bytes_);
  }
}

RowReducer::RowReducer(const ShardedParameter& parameter, const Parallel& parallel)
    : messages_(messages_of(parameter.spec, parallel.gtp_size())),
      owners_(parameter, parallel),
      types_(parameter.types) {}

std::int64_t* RowReducer::indices(std::byte* staging) const {
  return reinterpret_cast<std::int64_t*>(staging + aligned(messages_.row_bytes(types_.accumulator)));
}

std::size_t RowReducer::received_rows() const {
  return size(rounded_bytes(messages_, types_));
}

std::size_t RowReducer::received_indices() const {
  return received_rows() + size(aligned((messages_.ranks - 1) * messages_.row_bytes(types_.wire)));
}

void RowReducer::add_messages(std::byte* staging, const std::byte* wire, std::byte* scratch,
                              std::vector<comm::Send>& sends, std::vector<comm::Receive>& receives) const {
  const std::size_t rows = size(messages_.row_bytes(types_.wire)), index = size(messages_.index_bytes());
  for (int rank = 0; rank < owners_.ranks(); ++rank) {
    if (rank == owners_.rank()) continue;
    sends.push_back({rank, wire, rows});
    sends.push_back({rank, indices(staging), index});
    receives.push_back({rank, scratch + received_rows() + owners_.peer(rank) * rows, rows});
    receives.push_back({rank, scratch + received_indices() + owners_.peer(rank) * index, index});
  }
}

// What the ranks have for rows stored here, by row.
std::vector<RowReducer::Part> RowReducer::parts_of(std::byte* staging, const std::byte* wire,
                                                   const std::byte* scratch) const {
  const std::size_t message = size(messages_.row_bytes(types_.wire));
  const std::size_t row_bytes = size(messages_.columns) * base::size_of(types_.wire);
  const layout::Range own = owners_.owned(owners_.rank());
  std::vector<Part> parts;
  for (int rank = 0; rank < owners_.ranks(); ++rank) {
    const std::int64_t* rows = indices(staging);
    const std::byte* data = wire;
    if (rank != owners_.rank()) {
      data = scratch + received_rows() + owners_.peer(rank) * message;
      const std::byte* received = scratch + received_indices() + owners_.peer(rank) * size(messages_.index_bytes());
      rows = reinterpret_cast<const std::int64_t*>(received);
    }
    for (std::int64_t at = 0; at < messages_.rows; ++at)
      if (rows[at] >= own.begin && rows[at] < own.end)
        parts.push_back({rows[at] - own.begin, rank, data + size(at) * row_bytes});
  }
  std::ranges::sort(parts, {}, &Part::row);
  return parts;
}

// The sum of one row over the ranks.
class RowReducer::Sum {
 public:
  Sum(const ReductionTree& tree, const ParameterTypes& types, std::int64_t columns)
      : tree_(tree),
        types_(types),
        columns_(columns),
        zeros_(size(columns) * base::size_of(types.wire)),
        node_(size(columns) * base::size_of(types.accumulator)),
        parts_(size(tree.size()), zeros_.data()) {}

  // Adds these ranks' parts and the others' zeros to `row`, or writes their sum.
  void add(std::byte* row, std::span<const Part> parts, bool accumulate) {
    for (const Part& part : parts) parts_[size(part.rank)] = part.data;
    for (int node = 0; node < tree_.nodes(); ++node) {
      const auto members =
          std::span<const void* const>(parts_).subspan(size(tree_.first_of(node)), size(tree_.members_of(node)));
      if (members.size() == 1) {
        comm::ordered_sum(row, types_.accumulator, accumulate, members, types_.wire, columns_);
      } else {
        comm::ordered_sum(node_.data(), types_.accumulator, false, members, types_.wire, columns_);
        const std::array<const void*, 1> sum{node_.data()};
        comm::ordered_sum(row, types_.accumulator, accumulate, sum, types_.accumulator, columns_);
      }
      accumulate = true;
    }
    for (const Part& part : parts) parts_[size(part.rank)] = zeros_.data();
  }

 private:
  const ReductionTree& tree_;
  const ParameterTypes& types_;
  std::int64_t columns_;
  std::vector<std::byte> zeros_, node_;
  std::vector<const void*> parts_;  // by rank
};

void RowReducer::add_to_main_grad(ShardedParameter& parameter, const ReductionTree& tree, std::byte* staging,
                                  const std::byte* wire, const std::byte* scratch, bool accumulate) const {
  const std::vector<Part> parts = parts_of(staging, wire, scratch);
  const std::int64_t columns = messages_.columns;
  const std::size_t row_bytes = size(columns) * base::size_of(types_.accumulator);
  const auto row = [&](std::int64_t index) { return parameter.main_grad.data() + size(index) * row_bytes; };
  Sum sum(tree, types_, columns);
  const std::vector<std::int64_t> before = std::exchange(parameter.negative_zeros, {});
  if (!accumulate) parameter.main_grad.fill_zero();
  // -0 + 0 is 0: other rows that nobody has stay as they are.
  for (const std::int64_t index : before)
    if (accumulate && !std::ranges::binary_search(parts, index, {}, &Part::row)) sum.add(row(index), {}, true);
  for (std::size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    const std::int64_t index = parts[begin].row;
    while (end < parts.size() && parts[end].row == index) ++end;
    sum.add(row(index), std::span(parts).subspan(begin, end - begin), accumulate);
    if (holds_negative_zero(row(index), columns, types_.accumulator)) parameter.negative_zeros.push_back(index);
  }
}

}  // namespace tessera::shard
