#include "tessera/shard/ways/gradient_additions.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

#include "tessera/base/memory/buffer.h"
#include "tessera/layout/dense.h"

namespace tessera::shard {
namespace {

using comm::Addends, comm::OrderedAddition;
using layout::Layout, layout::LocalLayout, layout::Shape;
using quant::DType;

Layout parts(Shape shape, std::vector<LocalLayout> ranks) {
  return {.shape = shape, .ranks = std::move(ranks), .state = layout::State::partial};
}

// Returns a layout of `members` ranks in which only the rank `member` receives sums.
Layout taken_by(Shape shape, std::size_t member, std::size_t members, const LocalLayout& owned) {
  Layout layout{.shape = shape, .ranks = std::vector<LocalLayout>(members)};
  layout.ranks[member] = owned;
  return layout;
}

std::vector<int> numbers(int first, int count) {
  std::vector<int> result(static_cast<std::size_t>(count));
  std::iota(result.begin(), result.end(), first);
  return result;
}

}  // namespace

GradientAdditions::GradientAdditions(Shape shape, const std::vector<LocalLayout>& homes,
                                     const std::vector<LocalLayout>& owned, const ReductionTree& tree, int rank,
                                     const ParameterTypes& types)
    : has_nodes_(tree.members_of(0) > 1) {
  const auto ranks = owned.size();
  const LocalLayout& home = homes[static_cast<std::size_t>(rank)];
  if (!has_nodes_) {
    between_.push_back(
        {.addition = OrderedAddition(parts(shape, homes), {.shape = shape, .ranks = owned}, rank,
                                     {numbers(0, tree.size()), std::vector(ranks, types.wire), types.accumulator})});
    place(between_, 0);
    return;
  }
  const int node = tree.node_of(rank), first = tree.first_of(node);
  const auto members = static_cast<std::size_t>(tree.members_of(node));
  std::map<int, std::size_t> sums;  // key: owner to which this rank sends the sum of its node
  std::size_t sum_bytes = 0;
  for (int owner = 0; owner < tree.size() && members > 1; ++owner) {
    const LocalLayout& part = owned[static_cast<std::size_t>(owner)];
    const auto relay = static_cast<std::size_t>(tree.relay(owner, node) - first);
    Step step{.addition = OrderedAddition(
                  parts(shape, std::vector(members, home)), taken_by(shape, relay, members, part), rank - first,
                  {numbers(first, tree.members_of(node)), std::vector(members, types.wire), types.accumulator})};
    if (tree.relay(owner, node) == rank) {
      step.has_sums = true;
      step.sums = sums[owner] = sum_bytes;
      sum_bytes += static_cast<std::size_t>(types.accumulator_bytes(part.size));
    }
    within_.push_back(std::move(step));
  }
  place(within_, 0);
  const std::size_t first_sum = scratch_;
  for (Step& step : within_) step.sums += first_sum;
  scratch_ += base::align_up(sum_bytes);
  for (const int owner : tree.relayed()) {
    const LocalLayout& part = owned[static_cast<std::size_t>(owner)];
    Addends addends{.accumulator = types.accumulator};
    std::vector<LocalLayout> given;
    for (int other = 0; other < tree.nodes(); ++other) {
      addends.members.push_back(tree.relay(owner, other));
      addends.types.push_back(tree.type_of(other, types.wire, types.accumulator));
      given.push_back(tree.members_of(other) > 1 ? part : home);
    }
    const auto taker = static_cast<std::size_t>(tree.node_of(owner));
    if (owner == rank) own_ = between_.size();
    between_.push_back(
        {.addition = OrderedAddition(parts(shape, std::move(given)),
                                     taken_by(shape, taker, static_cast<std::size_t>(tree.nodes()), part), node,
                                     std::move(addends)),
         .has_sums = members > 1,
         .sums = members > 1 ? first_sum + sums.at(owner) : 0});
  }
  place(between_, scratch_);
}

// Places the memory of the steps one after another, from byte `first` of the scratch.
void GradientAdditions::place(std::vector<Step>& steps, std::size_t first) {
  std::size_t next = first;
  for (Step& step : steps) {
    step.scratch = next;
    next += step.addition.scratch_bytes();
    received_ += step.addition.received_bytes();
  }
  scratch_ = first + base::align_up(next - first);
}

void GradientAdditions::add_within(comm::Communicator& group, const std::byte* wire, std::byte* scratch,
                                   Messages& messages) const {
  for (const Step& step : within_)
    step.addition.add_messages(group, wire, scratch + step.scratch, messages.sends, messages.receives);
}

void GradientAdditions::sum_within(const quant::Kernels& kernels, const std::byte* wire, std::byte* scratch) const {
  for (const Step& step : within_)
    if (step.has_sums)
      step.addition.sum(kernels, wire, scratch + step.scratch, scratch + step.sums, comm::Start::nothing);
}

void GradientAdditions::add_between(comm::Communicator& group, const std::byte* wire, std::byte* scratch,
                                    Messages& messages) const {
  for (const Step& step : between_)
    step.addition.add_messages(group, step.source(wire, scratch), scratch + step.scratch, messages.sends,
                               messages.receives);
}

void GradientAdditions::sum(const quant::Kernels& kernels, const std::byte* wire, const std::byte* scratch,
                            std::byte* main_grad, comm::Start start, double* squares) const {
  const Step& step = between_[own_];
  step.addition.sum(kernels, step.source(wire, scratch), scratch + step.scratch, main_grad, start, squares);
}

GradientAdditions additions_of(const RankParts& parts, const Cuts& cuts, const Place& place,
                               const ParameterTypes& types) {
  const ReductionTree tree = tree_of(parts.storage, cuts, parts.storing_rank, place.duplicate);
  const Shape shape = parts.storage.shape;
  if (parts.layouts.groups.size() > 1) {
    std::vector<LocalLayout> homes;
    for (const GroupLayouts& group : parts.layouts.groups)
      for (std::size_t rank = 0; rank < group.home.ranks.size(); ++rank)
        homes.push_back(parts.layouts.is_cut || rank == 0 ? group.home.ranks[rank] : LocalLayout{});
    return {shape, homes, parts.storage.ranks, tree, parts.storing_rank, types};
  }
  // The ranks exchange rows of this compute rank's matrix. With local columns these rows are contiguous in the buffers.
  std::vector<LocalLayout> owned;
  for (int duplicate = 0; duplicate < cuts.duplicates; ++duplicate)
    std::ranges::transform(parts.storage.ranks, std::back_inserter(owned), layout::with_local_columns);
  const std::vector<LocalLayout> homes(owned.size(), layout::with_local_columns(parts.local_home));
  return {shape, homes, owned, tree, parts.storing_rank + parts.storage.size() * place.duplicate, types};
}

}  // namespace tessera::shard
