#include "tessera/comm/redistribution.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/operation.h"
#include "tessera/comm/packing.h"
#include "tessera/quant/device_kernels.h"

namespace tessera::comm {
namespace {

using layout::Transfer;
using quant::DType;

// Returns whether no message of any rank needs packing.
bool needs_no_packing(const layout::TransferPlan& plan) {
  if (plan.adds) return false;
  struct Runs {
    Run from, to;
  };
  std::vector<Runs> by_source;
  int target = -1;
  for (const Transfer& transfer : plan.transfers) {  // ordered by target
    if (transfer.target != target) by_source.assign(static_cast<std::size_t>(plan.ranks), {});
    target = transfer.target;
    if (transfer.source == target) continue;
    Runs& runs = by_source[static_cast<std::size_t>(transfer.source)];
    runs.from.add(transfer, source_of(transfer));
    runs.to.add(transfer, target_of(transfer));
    if (!runs.from.begin() || !runs.to.begin()) return false;
  }
  return true;
}

std::vector<int> all_ranks(int ranks) {
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

std::int64_t received_bytes(const layout::Collective& collective, int ranks, std::int64_t elements, DType type) {
  const auto bytes = [type](std::int64_t count) { return static_cast<std::int64_t>(bytes_of(count, type)); };
  if (collective.kind != layout::CollectiveKind::all_reduce) return bytes(elements);
  return all_reduce_received(bytes(collective.counts.front()), ranks);
}

Redistribution::Redistribution(const layout::Layout& from, const layout::Layout& to, int rank, DType type)
    : type_(type), rank_(rank) {
  const layout::TransferPlan plan = layout::redistribute(from, to);
  TESSERA_CHECK(rank >= 0 && rank < plan.ranks, "redistribution: expected a rank in [0, {}), got {}", plan.ranks, rank);
  collective_ = layout::recognise(plan, from, to);
  ranks_ = plan.ranks;
  adds_ = plan.adds;
  contiguous_ = needs_no_packing(plan);
  received_ = plan.elements_received(rank);
  if (adds_) {
    target_size_ = to.ranks[static_cast<std::size_t>(rank)].size;
    addition_.emplace(from, to, rank,
                      Addends{.members = all_ranks(ranks_),
                              .types = std::vector(static_cast<std::size_t>(ranks_), type),
                              .accumulator = quant::accumulator_of(type)});
    if (is_exchange()) return;
  }
  BoxMessages messages = box_messages(plan, rank);
  for (BoxMessage& message : messages.sends)
    if (message.run) message.transfers = {};
  for (BoxMessage& message : messages.receives)
    if (message.run && message.peer != rank) message.transfers = {};
  sends_ = std::move(messages.sends);
  receives_ = std::move(messages.receives);
}

bool Redistribution::is_exchange() const {
  return collective_.kind == layout::CollectiveKind::all_to_all ||
         collective_.kind == layout::CollectiveKind::transfers;
}

void Redistribution::check_group(const Communicator& group) const {
  TESSERA_CHECK(group.size() == ranks_ && group.rank() == rank_,
                "redistribution on {}: made for rank {} of {}, the group has rank {} of {}", group.name(), rank_,
                ranks_, group.rank(), group.size());
}

base::Fence Redistribution::run(Communicator& group, const void* source, void* target, DType type) const {
  check_group(group);
  if (adds_ && !quant::is_floating(type))
    throw Error("redistribution on {}: expected a floating type for a plan that adds, got {}", group.name(),
                name_of(type));
  TESSERA_CHECK(!adds_ || !is_exchange() || type == type_, "redistribution on {}: made for sums of {}, got {}",
                group.name(), name_of(type_), name_of(type));
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
      if (source != target)
        group.lane().run([=, &kernels = group.kernels()] { kernels.copy(source, target, bytes_of(count, type)); });
      return group.all_reduce(target, count, type);
    }
    case all_to_all:
    case transfers: {
      const Movement whole{this, source, target, type};
      return adds_ ? sum_together(group, {&whole, 1}) : run_copies(group, source, target, type);
    }
  }
  throw Error("redistribution on {}: unknown kind of collective", group.name());
}

// Copies the part that stays on this rank, box by box.
void Redistribution::copy_own(const quant::Kernels& kernels, const void* source, void* target, DType type) const {
  for (const BoxMessage& message : receives_) {
    if (message.peer != rank_) continue;
    for (const Transfer& transfer : message.transfers)
      copy_box(kernels, transfer, source, source_of(transfer), target, target_of(transfer), type);
  }
}

base::Fence Redistribution::run_local(Communicator& group, const void* source, void* target, DType type) const {
  group.lane().run(
      [this, &kernels = group.kernels(), source, target, type] { copy_own(kernels, source, target, type); });
  return group.lane().record();
}

// Buffers for messages that are not contiguous in the tensor, by index of the message. A contiguous message is sent
// from the tensor, or received into it, directly.
struct Redistribution::Staging {
  std::vector<std::optional<base::Scratch>> packed, arrived;
};

std::vector<Send> Redistribution::pack(Communicator& group, const std::shared_ptr<Staging>& staging, const void* source,
                                       DType type) const {
  std::vector<Send> sends;
  for (std::size_t i = 0; i < sends_.size(); ++i) {
    const BoxMessage& message = sends_[i];
    const std::size_t bytes = bytes_of(message.elements, type);
    const void* data = nullptr;
    if (message.run) {
      data = advance(source, *message.run, type);
    } else {
      std::byte* packed = staging->packed[i].emplace(group.kernels().scratch(bytes)).data();
      data = packed;
      group.lane().run([&message, &kernels = group.kernels(), staging, packed, source, type] {
        pack_boxes(kernels, message.transfers, source, packed, type);
      });
    }
    sends.push_back({.peer = message.peer, .data = data, .bytes = bytes});
  }
  return sends;
}

std::vector<Receive> Redistribution::arrivals(const quant::Kernels& kernels, Staging& staging, void* target,
                                              DType type) const {
  std::vector<Receive> receives;
  for (std::size_t i = 0; i < receives_.size(); ++i) {
    const BoxMessage& message = receives_[i];
    if (message.peer == rank_) continue;
    const std::size_t bytes = bytes_of(message.elements, type);
    void* data =
        message.run ? advance(target, *message.run, type) : staging.arrived[i].emplace(kernels.scratch(bytes)).data();
    receives.push_back({.peer = message.peer, .data = data, .bytes = bytes});
  }
  return receives;
}

base::Fence Redistribution::run_copies(Communicator& group, const void* source, void* target, DType type) const {
  const auto staging = make_staging();
  auto sends = pack(group, staging, source, type);
  auto receives = arrivals(group.kernels(), *staging, target, type);
  run_local(group, source, target, type);
  group.exchange(std::move(sends), std::move(receives));
  group.lane().run([this, &kernels = group.kernels(), staging, target, type] {
    for (std::size_t i = 0; i < receives_.size(); ++i) {
      if (!staging->arrived[i]) continue;
      std::int64_t at = 0;
      for (const Transfer& transfer : receives_[i].transfers) {
        copy_box(kernels, transfer, staging->arrived[i]->data(), {at, transfer.box.cols}, target, target_of(transfer),
                 type);
        at += transfer.box.elements();
      }
    }
  });
  return group.lane().record();
}

std::shared_ptr<Redistribution::Staging> Redistribution::make_staging() const {
  auto staging = std::make_shared<Staging>();
  staging->packed.resize(sends_.size());
  staging->arrived.resize(receives_.size());
  return staging;
}

base::Fence run_together(Communicator& group, std::span<const Movement> movements) {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (std::size_t m = 0; m < movements.size(); ++m) {
    const Movement& movement = movements[m];
    const Redistribution& how = *movement.redistribution;
    how.check_group(group);
    if (!how.is_contiguous())
      throw Error(
          "redistributions on {}: expected contiguous redistributions, but number {} adds or needs packing ({})",
          group.name(), m, layout::name_of(how.collective().kind));
    for (const auto& message : how.sends_)
      sends.push_back({.peer = message.peer,
                       .data = advance(movement.source, *message.run, movement.type),
                       .bytes = bytes_of(message.elements, movement.type)});
    for (const auto& message : how.receives_)
      if (message.peer != how.rank_)
        receives.push_back({.peer = message.peer,
                            .data = advance(movement.target, *message.run, movement.type),
                            .bytes = bytes_of(message.elements, movement.type)});
  }
  group.lane().run([&kernels = group.kernels(), all = std::vector(movements.begin(), movements.end())] {
    for (const Movement& each : all) each.redistribution->copy_own(kernels, each.source, each.target, each.type);
  });
  return group.exchange(std::move(sends), std::move(receives));
}

void Redistribution::add_parts(const quant::Kernels& kernels, const Movement& movement, const std::byte* parts) const {
  const DType accumulator = quant::accumulator_of(movement.type);
  if (movement.type == accumulator)
    return addition_->sum(kernels, movement.source, parts, movement.target, Start::nothing);
  base::Scratch sums = kernels.scratch(bytes_of(target_size_, accumulator));
  addition_->sum(kernels, movement.source, parts, sums.data(), Start::nothing);
  addition_->round(kernels, sums.data(), movement.target, movement.type);
}

base::Fence sum_together(Communicator& group, std::span<const Movement> movements) {
  const quant::Kernels& kernels = group.kernels();
  std::vector<Send> sends;
  std::vector<Receive> receives;
  std::vector<std::shared_ptr<base::Scratch>> parts;
  for (const Movement& each : movements) {
    const Redistribution& how = *each.redistribution;
    how.check_group(group);
    TESSERA_CHECK(how.adds_ && each.type == how.type_, "sums on {}: expected a plan that adds, made for {}, got {}",
                  group.name(), name_of(how.type_), name_of(each.type));
    parts.push_back(std::make_shared<base::Scratch>(kernels.scratch(how.addition_->scratch_bytes())));
    how.addition_->add_messages(group, each.source, parts.back()->data(), sends, receives);
  }
  group.exchange(std::move(sends), std::move(receives));
  group.lane().run([&kernels, parts, all = std::vector(movements.begin(), movements.end())] {
    for (std::size_t i = 0; i < all.size(); ++i) all[i].redistribution->add_parts(kernels, all[i], parts[i]->data());
  });
  return group.lane().record();
}

}  // namespace tessera::comm
