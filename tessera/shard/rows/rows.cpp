#include "tessera/shard/rows/rows.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/memory/buffer.h"

namespace tessera::shard {
namespace {

std::int64_t rounded_bytes(const RowMessages& messages, const ParameterTypes& types) {
  return types.wire != types.accumulator ? base::align_up(messages.row_bytes(types.wire)) : 0;
}

}  // namespace

RowMessages messages_of(const ParameterSpec& spec, const ParameterLayouts& layouts, int parts) {
  RowMessages messages{.rows = spec.reads.per_microbatch, .columns = spec.compute.shape.cols, .ranks = parts};
  for (int rank = 0; rank < layouts.home.size(); ++rank)
    for (const layout::LocalLayout& local : layouts.stored(rank, parts).ranks)
      messages.stored = std::max(messages.stored, local.size / messages.columns);
  return messages;
}

std::int64_t RowMessages::row_bytes(quant::DType type) const {
  return bytes_of(rows * columns, type);
}

std::int64_t RowMessages::index_bytes() const {
  return rows * static_cast<std::int64_t>(sizeof(std::int64_t));
}

std::int64_t RowMessages::staging(const ParameterTypes& types) const {
  return base::align_up(row_bytes(types.accumulator)) + 2 * base::align_up(index_bytes()) + base::align_up(map_bytes());
}

std::int64_t RowMessages::scratch(const ParameterTypes& types) const {
  return rounded_bytes(*this, types) + base::align_up((ranks - 1) * row_bytes(types.wire)) +
         base::align_up((ranks - 1) * index_bytes()) + base::align_up(map_bytes());
}

RowOwners::RowOwners(const ShardedParameter& parameter) : rank_(parameter.place.part) {
  begins_.push_back(0);
  for (const layout::LocalLayout& local : parameter.storage.ranks)
    begins_.push_back(begins_.back() + local.size / parameter.spec.compute.shape.cols);
}

layout::Range RowOwners::owned() const {
  const auto at = static_cast<std::size_t>(rank_);
  return {begins_[at], begins_[at + 1]};
}

RowGather::RowGather(const ShardedParameter& parameter, const ParallelGroups& parallel)
    : messages_(messages_of(parameter.spec, parameter.layouts, parameter.storage.size())),
      owners_(parameter),
      type_(parameter.types.model),
      device_(parallel.device),
      kernels_(make_row_kernels(device_, parallel.of(parameter.spec.domain, mesh::Transfer::rows).lane().stream())) {}

RowReading RowGather::reading_of(const ShardedParameter& parameter, std::int64_t count) {
  return {.most = messages_.rows,
          .row_bytes = bytes_of(messages_.columns, type_),
          .ranks = owners_.ranks(),
          .rank = owners_.rank(),
          .begins = reinterpret_cast<const std::int64_t*>(begins_.data()),
          .requested = reinterpret_cast<std::int64_t*>(requested_.data()),
          .stored = parameter.weight().data(),
          .messages = sent_.data(),
          .count = count,
          .out = nullptr};
}

void RowGather::gather_early(const ShardedParameter& parameter, comm::Communicator& group, const RowIds& ids,
                             const base::Fence& after) {
  const std::size_t ranks = to_size(owners_.ranks()), message = to_size(messages_.row_bytes(type_));
  if (requested_.size() == 0) {
    begins_ = base::Buffer(owners_.begins().size() * sizeof(std::int64_t), device_);
    base::copy_bytes(begins_.data(), owners_.begins().data(), begins_.size());
    requested_ = base::Buffer(ranks * to_size(messages_.index_bytes()), device_);
    sent_ = base::Buffer((ranks - 1) * message, device_);
    arrived_ = base::Buffer((ranks - 1) * message, device_);
  }
  auto* requested = reinterpret_cast<std::int64_t*>(requested_.data());
  std::int64_t* own = requested + owners_.rank() * messages_.rows;
  base::Lane& lane = group.lane();
  lane.wait(after);
  lane.run([this, ids, own] { kernels_->list(ids, owners_.rows(), own, messages_.rows); });
  group.all_gather(own, requested, comm::equal_counts(owners_.ranks(), messages_.rows), quant::DType::i64);
  lane.run([this, reading = reading_of(parameter, ids.count)] { kernels_->give(reading); });
  std::vector<comm::Send> sends;
  std::vector<comm::Receive> receives;
  for (int rank = 0; rank < owners_.ranks(); ++rank) {
    if (rank == owners_.rank()) continue;
    sends.push_back({rank, sent_.data() + owners_.peer(rank) * message, message});
    receives.push_back({rank, arrived_.data() + owners_.peer(rank) * message, message});
  }
  group.exchange(std::move(sends), std::move(receives));
}

base::Fence RowGather::place(const ShardedParameter& parameter, comm::Communicator& group, std::int64_t count,
                             void* out, const base::Fence& free) {
  RowReading reading = reading_of(parameter, count);
  reading.messages = arrived_.data();
  reading.out = static_cast<std::byte*>(out);
  base::Lane& lane = group.lane();
  lane.wait(free);
  lane.run([this, reading] { kernels_->take(reading); });
  return lane.record();
}

base::Fence RowGather::start(const ShardedParameter& parameter, comm::Communicator& group, const RowIds& ids,
                             const base::Fence& written, void* out, const base::Fence& free) {
  group.lane().wait(written);
  gather_early(parameter, group, ids, parameter.published());
  return place(parameter, group, ids.count, out, free);
}

RowReducer::RowReducer(const ShardedParameter& parameter, const ParallelGroups& parallel)
    : messages_(messages_of(parameter.spec, parameter.layouts, parameter.storage.size())),
      owners_(parameter),
      types_(parameter.types),
      clears_(parallel.cuts(parameter.spec.domain).replicas > 1),
      on_compute_(make_row_kernels(parallel.device, parallel.compute->stream())),
      on_reduce_(make_row_kernels(parallel.device,
                                  parallel.of(parameter.spec.domain, mesh::Transfer::reduce).lane().stream())) {
  // Indices are 32-bit integers.
  TESSERA_CHECK(messages_.rows < std::int64_t{1} << 30,
                "parameter '{}': {} rows are read in a microbatch, expected less than 2^30", parameter.spec.name,
                messages_.rows);
}

std::int64_t* RowReducer::indices(std::byte* staging) const {
  return reinterpret_cast<std::int64_t*>(staging + base::align_up(messages_.row_bytes(types_.accumulator)));
}

std::size_t RowReducer::index_part() const {
  return static_cast<std::size_t>(base::align_up(messages_.index_bytes()));
}

std::size_t RowReducer::received_rows() const {
  return to_size(rounded_bytes(messages_, types_));
}

std::size_t RowReducer::received_indices() const {
  return received_rows() +
         static_cast<std::size_t>(base::align_up((messages_.ranks - 1) * messages_.row_bytes(types_.wire)));
}

std::size_t RowReducer::map() const {
  return received_indices() + static_cast<std::size_t>(base::align_up((messages_.ranks - 1) * messages_.index_bytes()));
}

const std::int64_t* RowReducer::find_slots(const RowIds& ids, std::byte* staging) const {
  auto* firsts = reinterpret_cast<std::byte*>(indices(staging));
  auto* slots = reinterpret_cast<std::int64_t*>(firsts + index_part());
  on_compute_->find_slots({.ids = ids,
                           .rows = owners_.rows(),
                           .most = messages_.rows,
                           .map = reinterpret_cast<std::int32_t*>(firsts + 2 * index_part()),
                           .firsts = indices(staging),
                           .slots = slots});
  return slots;
}

void RowReducer::add_messages(std::byte* staging, const std::byte* wire, std::byte* scratch,
                              std::vector<comm::Send>& sends, std::vector<comm::Receive>& receives) const {
  const std::size_t rows = to_size(messages_.row_bytes(types_.wire)), index = to_size(messages_.index_bytes());
  for (int rank = 0; rank < owners_.ranks(); ++rank) {
    if (rank == owners_.rank()) continue;
    sends.push_back({rank, wire, rows});
    sends.push_back({rank, indices(staging), index});
    receives.push_back({rank, scratch + received_rows() + owners_.peer(rank) * rows, rows});
    receives.push_back({rank, scratch + received_indices() + owners_.peer(rank) * index, index});
  }
}

void RowReducer::add_to_main_grad(ShardedParameter& parameter, const ReductionTree& tree, std::byte* staging,
                                  const std::byte* wire, std::byte* scratch, bool accumulate) const {
  const layout::Range own = owners_.owned();
  on_reduce_->sum({.wire = types_.wire,
                   .accumulator = types_.accumulator,
                   .columns = messages_.columns,
                   .most = messages_.rows,
                   .ranks = owners_.ranks(),
                   .node = tree.members_of(0),
                   .begin = own.begin,
                   .count = own.size(),
                   .indices = {.own = indices(staging),
                               .others = reinterpret_cast<const std::int64_t*>(scratch + received_indices()),
                               .size = messages_.rows,
                               .rank = owners_.rank()},
                   .rows = {.own = wire,
                            .others = scratch + received_rows(),
                            .size = messages_.row_bytes(types_.wire),
                            .rank = owners_.rank()},
                   .map = reinterpret_cast<std::int32_t*>(scratch + map()),
                   .states = reinterpret_cast<std::uint8_t*>(parameter.row_states.data()),
                   .sum = parameter.main_grad.data(),
                   .accumulate = accumulate,
                   .clear = clears_});
}

}  // namespace tessera::shard
