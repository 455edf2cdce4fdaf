#include "tessera/shard/ways/reduction.h"

#include <algorithm>
#include <utility>

namespace tessera::shard {
namespace {

std::size_t size_in_bytes(std::int64_t elements, quant::DType type) {
  return static_cast<std::size_t>(bytes_of(elements, type));
}

}  // namespace

Reducer::Reducer(const ShardedParameter& parameter, const ParallelGroups& parallel, const Cuts& cuts, schedule::Way way)
    : types_(parameter.types),
      staging_type_(parameter.types.accumulator),
      tree_(tree_of(parameter.storage, cuts, parameter.storing_rank, parameter.place.duplicate)),
      way_(std::move(way)) {
  if (parameter.by_rows && !parameter.spec.trainable) return;  // a frozen table has no gradient and no group
  if (parameter.written_by_layers) {
    staging_type_ = parameter.gradient_type();
    return;
  }
  if (parameter.row_gradients) {
    const RowMessages& messages = rows_.emplace(parameter, parallel).messages();
    home_elements_ = messages.rows * messages.columns;
    gradient_bytes_ = static_cast<std::size_t>(messages.staging(types_));
    rounded_bytes_ = static_cast<std::size_t>(messages.scratch(types_));
    return;
  }
  home_elements_ = parameter.local_home.size;
  if (sums_compute(parameter.spec, parameter.layouts)) {
    layout::Layout parts = parameter.spec.compute;
    parts.state = layout::State::partial;
    over_compute_.emplace(parts, parameter.layouts.home, parameter.place.compute, types_.accumulator);
    summed_bytes_ = base::align_up(size_in_bytes(home_elements_, types_.accumulator));
  }
  staging_type_ = shard::staging_type(parameter.spec, types_, over_compute_.has_value());
  gradient_bytes_ = base::align_up(size_in_bytes(parameter.local_compute.size, staging_type_));
  if (types_.wire != staging_type_)
    (over_compute_ ? rounded_bytes_ : staged_rounded_bytes_) =
        base::align_up(size_in_bytes(home_elements_, types_.wire));
  additions_.emplace(additions_of(parameter, cuts, parameter.place, parameter.types));
}

base::Fence Reducer::sum_over_compute(std::span<const Reducing> members, const ParallelGroups& parallel,
                                      const base::Fence& written, const base::LaneMark& mark) {
  std::vector<comm::Movement> sums;
  for (const auto& [parameter, reducer, staging, scratch] : members)
    if (reducer->over_compute_)
      sums.push_back(
          {&*reducer->over_compute_, staging, staging + reducer->gradient_bytes_, parameter->types.accumulator});
  if (sums.empty()) return written;
  comm::Communicator& group = parallel.of(members.front().parameter->spec.domain, mesh::Transfer::reduce_compute);
  group.lane().wait(written);
  mark.begin(group.lane());
  const auto& [first, source, target, type] = sums.front();
  return mark.end(group.lane(),
                  sums.size() == 1 ? first->run(group, source, target, type) : comm::sum_together(group, sums));
}

std::byte* Reducer::wire_of(const Reducing& member) const {
  if (types_.wire == staging_type_) return member.staging + (over_compute_ ? gradient_bytes_ : 0);
  return rounds_on_compute() ? member.staging + gradient_bytes_ : member.scratch;
}

std::byte* Reducer::exchanged(const Reducing& member) const {
  return member.scratch + rounded_bytes_;
}

void Reducer::round(const quant::Kernels& kernels, const Reducing& member) const {
  const std::byte* exact = member.staging + (over_compute_ ? gradient_bytes_ : 0);
  kernels.cast(exact, types_.accumulator, wire_of(member), types_.wire, home_elements_);
}

base::Fence Reducer::round_on_compute(std::span<const Reducing> members, ParallelGroups& parallel) {
  for (const Reducing& member : members)
    if (member.reducer->rounds_on_compute())
      parallel.compute->run([&, member] { member.reducer->round(parallel.kernels(), member); });
  return parallel.compute->record();
}

void Reducer::add_to_main_grad(const quant::Kernels& kernels, const Reducing& member, const std::byte* wire,
                               bool accumulate, double* squares) const {
  ShardedParameter& parameter = *member.parameter;
  if (rows_) return rows_->add_to_main_grad(parameter, tree_, member.staging, wire, member.scratch, accumulate);
  additions_->sum(kernels, wire, exchanged(member), parameter.main_grad.data(),
                  accumulate ? comm::Start::target : comm::Start::nothing, squares);
}

void Reducer::exchange(const std::vector<Sum>& sums, comm::Communicator& group) {
  const ReductionTree& tree = sums.front().member.reducer->tree_;
  const bool has_nodes = tree.members_of(0) > 1;
  GradientAdditions::Messages within, between;
  for (const auto& [member, wire, accumulate, squares] : sums)
    if (const auto& additions = member.reducer->additions_; additions && has_nodes)
      additions->add_within(group, wire, member.reducer->exchanged(member), within);
  if (has_nodes) {
    group.exchange(std::move(within.sends), std::move(within.receives));
    group.lane().run([sums, &kernels = group.kernels()] {
      for (const auto& [member, wire, accumulate, squares] : sums)
        if (const auto& additions = member.reducer->additions_)
          additions->sum_within(kernels, wire, member.reducer->exchanged(member));
    });
  }
  for (const auto& [member, wire, accumulate, squares] : sums) {
    const Reducer& reducer = *member.reducer;
    if (reducer.rows_)
      reducer.rows_->add_messages(member.staging, wire, member.scratch, between.sends, between.receives);
    else
      reducer.additions_->add_between(group, wire, reducer.exchanged(member), between);
  }
  if (tree.nodes() > 1 || !between.sends.empty()) group.exchange(std::move(between.sends), std::move(between.receives));
}

base::Fence reduce(std::span<Reducing> members, ParallelGroups& parallel, bool is_last, const Recording& recording,
                   std::span<std::byte> poisoned) {
  const int domain = members.front().parameter->spec.domain;
  comm::Communicator& group = parallel.of(domain, mesh::Transfer::reduce);
  base::Lane& lane = group.lane();
  const quant::Kernels& kernels = group.kernels();
  schedule::Way way;
  for (const Reducing& member : members) schedule::add_hops(way, member.reducer->way_);
  const base::Fence written = Reducer::round_on_compute(members, parallel);
  const base::LaneMark compute_mark = mark_of(recording, way, mesh::Transfer::reduce_compute);
  const base::LaneMark mark = mark_of(recording, way, mesh::Transfer::reduce);
  lane.wait(Reducer::sum_over_compute(members, parallel, written, compute_mark));
  mark.begin(lane);
  std::vector<Reducer::Sum> sums;
  for (const Reducing& member : members) {
    const Reducer& reducer = *member.reducer;
    const std::byte* wire = reducer.wire_of(member);
    if (reducer.types_.wire != reducer.staging_type_ && !reducer.rounds_on_compute())
      lane.run([member, &kernels] { member.reducer->round(kernels, member); });
    const auto [accumulates, squares] = member.parameter->next_sum(is_last);
    sums.push_back({member, wire, accumulates, squares});
  }
  Reducer::exchange(sums, group);
  // Gradients of rows are added on the lane of the exchange.
  const auto has_rows = [](const Reducing& m) { return m.reducer->rows_.has_value(); };
  const bool apart = parallel.sums && std::ranges::none_of(members, has_rows);
  base::Lane& last = apart ? *parallel.sums : lane;
  if (apart) last.wait(mark.end(lane, lane.record()));
  last.run([sums = std::move(sums), poisoned, &kernels = apart ? parallel.sum_kernels() : kernels] {
    for (const Reducer::Sum& sum : sums)
      sum.member.reducer->add_to_main_grad(kernels, sum.member, sum.wire, sum.accumulate, sum.squares);
    kernels.fill(poisoned.data(), quant::DType::u8, 0xFF, static_cast<std::int64_t>(poisoned.size()));
  });
  return apart ? last.record() : mark.end(lane, lane.record());
}

}  // namespace tessera::shard
