#include "tessera/shard/reduction.h"

#include <algorithm>
#include <utility>

namespace tessera::shard {
namespace {

std::size_t size_in_bytes(std::int64_t elements, quant::DType type) {
  return static_cast<std::size_t>(bytes_of(elements, type));
}

// A scratch part of this many bytes, aligned.
std::size_t part(std::int64_t bytes) {
  return base::align_up(static_cast<std::size_t>(bytes));
}

}  // namespace

Reducer::Reducer(const ShardedParameter& parameter, const Parallel& parallel, int node)
    : types_(parameter.types),
      staging_type_(parameter.types.accumulator),
      tree_(tree_of(parameter.storage, !parameter.spec.sharded, {.gtp = parallel.gtp_size(), .node = node},
                    {parallel.tp_rank(), parallel.gtp_rank()})),
      rank_(parallel.gtp_rank()) {
  if (parameter.by_rows) {
    const RowMessages& messages = rows_.emplace(parameter, parallel).messages();
    home_elements_ = messages.rows * messages.columns;
    gradient_bytes_ = static_cast<std::size_t>(messages.staging(types_));
    rounded_bytes_ = static_cast<std::size_t>(messages.scratch(types_));
    received_bytes_ = messages.exchanged(types_.wire);
    return;
  }
  home_elements_ = parameter.local_home.size;
  const bool overlaps = parameter.home != parameter.spec.compute;
  if (overlaps || (parameter.spec.partial_gradient && parallel.tp_size() > 1)) {
    layout::Layout parts = parameter.spec.compute;
    parts.state = layout::State::partial;
    over_tp_.emplace(parts, parameter.home, parallel.tp_rank());
    summed_bytes_ = base::align_up(size_in_bytes(home_elements_, types_.accumulator));
    tp_bytes_ = static_cast<std::int64_t>(size_in_bytes(over_tp_->elements_received(), types_.accumulator));
  }
  staging_type_ = shard::staging_type(parameter.spec, types_, over_tp_.has_value());
  gradient_bytes_ = base::align_up(size_in_bytes(parameter.local_compute.size, staging_type_));
  if (types_.wire != staging_type_)
    (over_tp_ ? rounded_bytes_ : staged_rounded_bytes_) = base::align_up(size_in_bytes(home_elements_, types_.wire));
  const ReductionTree::Bytes bytes = tree_.bytes(types_.wire, types_.accumulator);
  within_bytes_ = part(bytes.within);
  sums_bytes_ = part(bytes.sums);
  between_bytes_ = part(bytes.between);
  received_bytes_ = tp_bytes_ + bytes.within + bytes.between;
}

base::Fence Reducer::sum_over_tp(const ShardedParameter& parameter, comm::Communicator& tp, std::byte* staging,
                                 const base::Fence& written, const base::LaneMark& mark) const {
  if (!over_tp_) return written;
  tp.lane().wait(written);
  mark.begin(tp.lane());
  return mark.end(tp.lane(), over_tp_->run(tp, staging, staging + gradient_bytes_, parameter.types.accumulator));
}

std::byte* Reducer::wire_of(const Reducing& member) const {
  if (types_.wire == staging_type_) return member.staging + (over_tp_ ? gradient_bytes_ : 0);
  return rounds_on_compute() ? member.staging + gradient_bytes_ : member.scratch;
}

void Reducer::round(const quant::Kernels& kernels, const Reducing& member) const {
  const std::byte* exact = member.staging + (over_tp_ ? gradient_bytes_ : 0);
  kernels.cast(exact, types_.accumulator, wire_of(member), types_.wire, home_elements_);
}

base::Fence Reducer::round_on_compute(std::span<const Reducing> members, Parallel& parallel) {
  for (const Reducing& member : members)
    if (member.reducer->rounds_on_compute())
      parallel.compute->run([&, member] { member.reducer->round(parallel.kernels(), member); });
  return parallel.compute->record();
}

// The ranks of this node give each other the parts for the owners that each relays.
void Reducer::add_within(const std::byte* wire, std::byte* scratch, Messages& messages) const {
  const int node = tree_.node_of(rank_), first = tree_.first_of(node);
  std::byte* received = scratch + rounded_bytes_;
  for (int peer = first; peer < first + tree_.members_of(node); ++peer) {
    if (peer == rank_) continue;
    for (int owner = 0; owner < tree_.size(); ++owner)
      if (tree_.relay(owner, node) == peer)
        messages.sends.push_back({peer, wire + size_in_bytes(tree_.offset(owner), types_.wire),
                                  size_in_bytes(tree_.owned(owner), types_.wire)});
    for (const int owner : tree_.relayed()) {
      const std::size_t bytes = size_in_bytes(tree_.owned(owner), types_.wire);
      messages.receives.push_back({peer, received, bytes});
      received += bytes;
    }
  }
}

void Reducer::sum_node(const quant::Kernels& kernels, const std::byte* wire, std::byte* scratch) const {
  const int node = tree_.node_of(rank_), first = tree_.first_of(node), members = tree_.members_of(node);
  if (members == 1) return;
  const std::byte* received = scratch + rounded_bytes_;
  const std::size_t from_a_peer = size_in_bytes(tree_.relayed_elements(), types_.wire);
  std::byte* sum = scratch + rounded_bytes_ + within_bytes_;
  std::size_t before = 0;  // bytes of the owners so far, in what a peer sent
  for (const int owner : tree_.relayed()) {
    std::vector<const void*> parts;
    for (int rank = first, peer = 0; rank < first + members; ++rank) {
      if (rank == rank_)
        parts.push_back(wire + size_in_bytes(tree_.offset(owner), types_.wire));
      else
        parts.push_back(received + before + from_a_peer * static_cast<std::size_t>(peer++));
    }
    kernels.ordered_sum(sum, types_.accumulator, false, parts, types_.wire, tree_.owned(owner));
    before += size_in_bytes(tree_.owned(owner), types_.wire);
    sum += size_in_bytes(tree_.owned(owner), types_.accumulator);
  }
}

const std::byte* Reducer::node_sum(int owner, const std::byte* wire, const std::byte* scratch) const {
  if (tree_.members_of(tree_.node_of(rank_)) == 1) return wire + size_in_bytes(tree_.offset(owner), types_.wire);
  const std::byte* sum = scratch + rounded_bytes_ + within_bytes_;
  for (const int before : tree_.relayed()) {
    if (before == owner) break;
    sum += size_in_bytes(tree_.owned(before), types_.accumulator);
  }
  return sum;
}

// Each owner gets its sum from its relay in every other node.
void Reducer::add_between(const std::byte* wire, std::byte* scratch, Messages& messages) const {
  const int own_node = tree_.node_of(rank_);
  const quant::DType sent = tree_.type_of(own_node, types_.wire, types_.accumulator);
  for (const int owner : tree_.relayed())
    if (tree_.node_of(owner) != own_node)
      messages.sends.push_back({owner, node_sum(owner, wire, scratch), size_in_bytes(tree_.owned(owner), sent)});
  std::byte* received = scratch + rounded_bytes_ + within_bytes_ + sums_bytes_;
  for (int node = 0; node < tree_.nodes(); ++node) {
    if (node == own_node) continue;
    const quant::DType type = tree_.type_of(node, types_.wire, types_.accumulator);
    const std::size_t bytes = size_in_bytes(tree_.owned(rank_), type);
    messages.receives.push_back({tree_.relay(rank_, node), received, bytes});
    received += bytes;
  }
}

void Reducer::add_to_main_grad(const quant::Kernels& kernels, const Reducing& member, const std::byte* wire,
                               bool accumulate, double* squares) const {
  ShardedParameter& parameter = *member.parameter;
  if (rows_) return rows_->add_to_main_grad(parameter, tree_, member.staging, wire, member.scratch, accumulate);
  const std::byte* scratch = member.scratch;
  const std::byte* received = scratch + rounded_bytes_ + within_bytes_ + sums_bytes_;
  std::vector<const void*> parts;
  for (int node = 0; node < tree_.nodes(); ++node) {
    const quant::DType type = tree_.type_of(node, types_.wire, types_.accumulator);
    const bool is_own = node == tree_.node_of(rank_);
    parts.push_back(is_own ? node_sum(rank_, wire, scratch) : received);
    if (!is_own) received += size_in_bytes(tree_.owned(rank_), type);
    const bool goes_on = node + 1 < tree_.nodes() && tree_.type_of(node + 1, types_.wire, types_.accumulator) == type;
    if (goes_on) continue;
    void* sum = parameter.main_grad.data();
    if (squares && node + 1 == tree_.nodes()) {
      const std::int64_t columns = parameter.local_storage.pieces.front().box.cols;
      kernels.ordered_sum_squares(sum, types_.accumulator, accumulate, parts, type, tree_.owned(rank_) / columns,
                                  columns, squares);
    } else {
      kernels.ordered_sum(sum, types_.accumulator, accumulate, parts, type, tree_.owned(rank_));
    }
    parts.clear();
    accumulate = true;
  }
}

base::Fence reduce(std::span<Reducing> members, Parallel& parallel, bool is_last, const Recording& recording,
                   std::span<std::byte> poisoned) {
  comm::Communicator& gtp = *parallel.gtp_reduce;
  base::Lane& lane = gtp.lane();
  const quant::Kernels& kernels = gtp.kernels();
  std::int64_t bytes = 0, tp_bytes = 0;
  for (const Reducing& member : members) {
    tp_bytes += member.reducer->tp_bytes_;
    bytes += member.reducer->received_bytes_ - member.reducer->tp_bytes_;
  }
  const base::Fence written = Reducer::round_on_compute(members, parallel);
  const base::LaneMark tp_mark = recording.mark(schedule::Activity::reduce_tp, tp_bytes);
  const base::LaneMark mark = recording.mark(schedule::Activity::reduce, bytes);
  lane.wait(written);
  for (const Reducing& member : members)
    lane.wait(member.reducer->sum_over_tp(*member.parameter, *parallel.tp_reduce, member.staging, written, tp_mark));
  mark.begin(lane);
  struct Sum {
    Reducing member;
    const std::byte* wire;
    bool accumulate;
    double* squares;
  };
  std::vector<Sum> sums;
  Reducer::Messages within, between;
  for (const Reducing& member : members) {
    const Reducer& reducer = *member.reducer;
    const std::byte* wire = reducer.wire_of(member);
    if (reducer.types_.wire != reducer.staging_type_ && !reducer.rounds_on_compute())
      lane.run([member, &kernels] { member.reducer->round(kernels, member); });
    if (reducer.rows_) {
      reducer.rows_->add_messages(member.staging, wire, member.scratch, between.sends, between.receives);
    } else {
      reducer.add_within(wire, member.scratch, within);
      reducer.add_between(wire, member.scratch, between);
    }
    double* const squares = is_last ? member.parameter->row_squares : nullptr;
    sums.push_back({member, wire, std::exchange(member.parameter->main_grad_written, true), squares});
    member.parameter->row_squares_written = squares != nullptr;
  }
  const ReductionTree& tree = members.front().reducer->tree_;
  if (tree.members_of(0) > 1) {
    gtp.exchange(std::move(within.sends), std::move(within.receives));
    lane.run([sums, &kernels] {
      for (const Sum& sum : sums)
        if (!sum.member.reducer->rows_) sum.member.reducer->sum_node(kernels, sum.wire, sum.member.scratch);
    });
  }
  if (tree.nodes() > 1 || !between.sends.empty()) gtp.exchange(std::move(between.sends), std::move(between.receives));
  const auto has_rows = [](const Reducing& m) { return m.reducer->rows_.has_value(); };  // added on the exchange's lane
  const bool apart = parallel.sums && std::ranges::none_of(members, has_rows);
  base::Lane& last = apart ? *parallel.sums : lane;
  if (apart) last.wait(mark.end(lane, lane.record()));
  last.run([sums = std::move(sums), poisoned, &kernels = apart ? parallel.sum_kernels() : kernels] {
    for (const Sum& sum : sums)
      sum.member.reducer->add_to_main_grad(kernels, sum.member, sum.wire, sum.accumulate, sum.squares);
    kernels.fill(poisoned.data(), quant::DType::u8, 0xFF, static_cast<std::int64_t>(poisoned.size()));
  });
  return apart ? last.record() : mark.end(lane, lane.record());
}

}  // namespace tessera::shard
