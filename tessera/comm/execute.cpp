#include "tessera/comm/execute.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "tessera/base/buffer.h"
#include "tessera/base/error.h"
#include "tessera/comm/kernels.h"
#include "tessera/comm/operation.h"

namespace tessera::comm {
namespace {

using base::DType;
using layout::Transfer;

struct Side {
  std::int64_t offset = 0, stride = 0;
};
Side source_of(const Transfer& transfer) {
  return {transfer.source_offset, transfer.source_stride};
}
Side target_of(const Transfer& transfer) {
  return {transfer.target_offset, transfer.target_stride};
}

// Copies the box of `transfer` between two places given in elements.
void copy_box(const Transfer& transfer, const void* source, Side from, void* target, Side to, DType type) {
  copy_matrix(advance(source, from.offset, type), from.stride, advance(target, to.offset, type), to.stride,
              transfer.box.rows, transfer.box.cols, base::size_of(type));
}

// The start of the one run that all transfers of a message lie in, one behind the other, on one side; none if they do
// not.
std::optional<std::int64_t> contiguous(const std::vector<Transfer>& transfers, Side (*side)(const Transfer&)) {
  std::int64_t next = transfers.empty() ? 0 : side(transfers.front()).offset;
  for (const Transfer& transfer : transfers) {
    const bool dense = transfer.box.rows == 1 || side(transfer).stride == transfer.box.cols;
    if (side(transfer).offset != next || !dense) return std::nullopt;
    next += transfer.box.elements();
  }
  return transfers.empty() ? 0 : side(transfers.front()).offset;
}

// sum of every target element from -0.0, which added to x gives x for every x, -0.0 too.
class Sums {
 public:
  Sums(std::int64_t size, DType type)
      : type_(type), accumulator_(base::accumulator_of(type)), values_(bytes_of(size, accumulator_)) {
    if (accumulator_ == DType::fp64)
      std::ranges::fill(values_.as<double>(), -0.0);
    else
      std::ranges::fill(values_.as<float>(), -0.0f);
  }
  void add(const Transfer& transfer, const void* data, Side from) {
    for (std::int64_t row = 0; row < transfer.box.rows; ++row) {
      const void* part = advance(data, from.offset + row * from.stride, type_);
      ordered_sum(advance(values_.data(), transfer.target_offset + row * transfer.target_stride, accumulator_),
                  accumulator_, true, std::span(&part, 1), type_, transfer.box.cols);
    }
  }
  void write(const Transfer& transfer, void* target) const {
    for (std::int64_t row = 0; row < transfer.box.rows; ++row) {
      const std::int64_t at = transfer.target_offset + row * transfer.target_stride;
      cast(advance(values_.data(), at, accumulator_), accumulator_, advance(target, at, type_), type_,
           transfer.box.cols);
    }
  }

 private:
  DType type_, accumulator_;
  base::Buffer values_;
};

}  // namespace

Redistribution::Redistribution(const layout::Layout& from, const layout::Layout& to, int rank)
    : plan_(layout::redistribute(from, to)), rank_(rank) {
  TESSERA_CHECK(rank >= 0 && rank < plan_.ranks, "redistribution: expected a rank in [0, {}), got {}", plan_.ranks,
                rank);
  collective_ = layout::recognise(plan_, from, to);
  target_size_ = to.ranks[static_cast<std::size_t>(rank)].size;
  const auto ranks = static_cast<std::size_t>(plan_.ranks);
  sends_.resize(ranks);
  receives_.resize(ranks);
  for (const Transfer& transfer : plan_.transfers) {
    if (transfer.source == rank) add(sends_[static_cast<std::size_t>(transfer.target)], transfer);
    if (transfer.target == rank) add(receives_[static_cast<std::size_t>(transfer.source)], transfer);
  }
  for (Message& message : sends_) message.run = contiguous(message.transfers, source_of);
  for (Message& message : receives_) message.run = contiguous(message.transfers, target_of);
}

void Redistribution::add(Message& message, const Transfer& transfer) {
  message.transfers.push_back(transfer);
  message.elements += transfer.box.elements();
}

base::Fence Redistribution::run(Communicator& group, const void* source, void* target, DType type) const {
  TESSERA_CHECK(group.size() == plan_.ranks && group.rank() == rank_,
                "redistribution on {}: made for rank {} of {}, the group has rank {} of {}", group.name(), rank_,
                plan_.ranks, group.rank(), group.size());
  if (plan_.adds && !base::is_floating(type))
    throw Error("redistribution on {}: expected a floating type for a plan that adds, got {}", group.name(),
                base::name_of(type));
  using enum layout::CollectiveKind;
  switch (collective_.kind) {
    case none:
    case local:
      return run_local(group, source, target, type);
    case all_gather:
      return group.all_gather(source, target, collective_.counts, type);
    case reduce_scatter:
      return group.reduce_scatter(source, target, collective_.counts, type);
    case all_reduce: {
      const std::int64_t count = collective_.counts.front();
      group.lane().run([=] { copy_matrix(source, count, target, count, 1, count, base::size_of(type)); });
      return group.all_reduce(target, count, type);
    }
    case all_to_all:
    case transfers:
      return plan_.adds ? run_sums(group, source, target, type) : run_copies(group, source, target, type);
  }
  throw Error("redistribution on {}: no such collective", group.name());
}

base::Fence Redistribution::run_local(Communicator& group, const void* source, void* target, DType type) const {
  const Message& own = receives_[static_cast<std::size_t>(rank_)];
  group.lane().run([&own, source, target, type] {
    for (const Transfer& transfer : own.transfers)
      copy_box(transfer, source, source_of(transfer), target, target_of(transfer), type);
  });
  return group.lane().record();
}

// A message leaves from, and arrives in, the tensor itself where it is one run of it; else a packed buffer. The own
// part is copied box by box.
struct Redistribution::Staging {
  std::vector<std::optional<base::Buffer>> packed, arrived;
};

std::vector<Send> Redistribution::pack(Communicator& group, Staging& staging, const void* source, DType type) const {
  std::vector<Send> sends;
  for (std::size_t peer = 0; peer < sends_.size(); ++peer) {
    const Message& message = sends_[peer];
    if (message.elements == 0 || static_cast<int>(peer) == rank_) continue;
    const std::size_t bytes = bytes_of(message.elements, type);
    const void* data = nullptr;
    if (message.run) {
      data = advance(source, *message.run, type);
    } else {
      std::byte* packed = staging.packed[peer].emplace(bytes).data();
      data = packed;
      group.lane().run([&message, packed, source, type] {
        std::int64_t at = 0;
        for (const Transfer& transfer : message.transfers) {
          copy_box(transfer, source, source_of(transfer), packed, {at, transfer.box.cols}, type);
          at += transfer.box.elements();
        }
      });
    }
    sends.push_back({.peer = static_cast<int>(peer), .data = data, .bytes = bytes});
  }
  return sends;
}

std::vector<Receive> Redistribution::arrivals(Staging& staging, void* target, DType type) const {
  std::vector<Receive> receives;
  for (std::size_t peer = 0; peer < receives_.size(); ++peer) {
    const Message& message = receives_[peer];
    if (message.elements == 0 || static_cast<int>(peer) == rank_) continue;
    const std::size_t bytes = bytes_of(message.elements, type);
    const bool direct = message.run && !plan_.adds;
    void* data = direct ? advance(target, *message.run, type) : staging.arrived[peer].emplace(bytes).data();
    receives.push_back({.peer = static_cast<int>(peer), .data = data, .bytes = bytes});
  }
  return receives;
}

base::Fence Redistribution::run_copies(Communicator& group, const void* source, void* target, DType type) const {
  const auto staging = make_staging();
  auto sends = pack(group, *staging, source, type);
  auto receives = arrivals(*staging, target, type);
  run_local(group, source, target, type);
  group.exchange(std::move(sends), std::move(receives));
  group.lane().run([this, staging, target, type] {
    for (std::size_t peer = 0; peer < receives_.size(); ++peer) {
      if (!staging->arrived[peer]) continue;
      std::int64_t at = 0;
      for (const Transfer& transfer : receives_[peer].transfers) {
        copy_box(transfer, staging->arrived[peer]->data(), {at, transfer.box.cols}, target, target_of(transfer), type);
        at += transfer.box.elements();
      }
    }
  });
  return group.lane().record();
}

base::Fence Redistribution::run_sums(Communicator& group, const void* source, void* target, DType type) const {
  const auto staging = make_staging();
  auto sends = pack(group, *staging, source, type);
  auto receives = arrivals(*staging, target, type);
  group.exchange(std::move(sends), std::move(receives));
  group.lane().run([this, staging, source, target, type] {
    Sums sums(target_size_, type);
    for (std::size_t peer = 0; peer < receives_.size(); ++peer) {
      std::int64_t at = 0;
      for (const Transfer& transfer : receives_[peer].transfers) {
        if (static_cast<int>(peer) == rank_)
          sums.add(transfer, source, source_of(transfer));
        else
          sums.add(transfer, staging->arrived[peer]->data(), {at, transfer.box.cols});
        at += transfer.box.elements();
      }
    }
    for (const Message& message : receives_)
      for (const Transfer& transfer : message.transfers) sums.write(transfer, target);
  });
  return group.lane().record();
}

std::shared_ptr<Redistribution::Staging> Redistribution::make_staging() const {
  auto staging = std::make_shared<Staging>();
  staging->packed.resize(sends_.size());
  staging->arrived.resize(receives_.size());
  return staging;
}

}  // namespace tessera::comm
