#include "tessera/shard/reduction.h"

#include <cstring>
#include <utility>

#include "tessera/comm/kernels.h"

namespace tessera::shard {

Reducer::Reducer(const ShardedParameter& parameter, const Parallel& parallel)
    : gtp_rank_(parallel.gtp_rank()), gtp_size_(parallel.gtp_size()) {
  const int tp = parallel.tp_rank(), tp_size = parallel.tp_size();
  const std::size_t accumulator = base::size_of(parameter.types.accumulator);
  const std::size_t wire = base::size_of(parameter.types.wire);
  home_elements_ = parameter.local_home.size;
  gradient_bytes_ = base::align_up(static_cast<std::size_t>(parameter.local_compute.size) * accumulator);

  const bool overlaps = parameter.home != parameter.spec.compute;
  if (overlaps || (parameter.spec.partial_gradient && tp_size > 1)) {
    layout::Layout parts = parameter.spec.compute;
    parts.state = layout::State::partial;
    over_tp_.emplace(parts, parameter.home, tp);
    summed_bytes_ = base::align_up(static_cast<std::size_t>(home_elements_) * accumulator);
    received_bytes_ += over_tp_->elements_received() * static_cast<std::int64_t>(accumulator);
  }
  if (wire != accumulator) rounded_bytes_ = base::align_up(static_cast<std::size_t>(home_elements_) * wire);
  for (int rank = 0; rank < gtp_size_; ++rank)
    owned_.push_back(parameter.storage.ranks[static_cast<std::size_t>(tp + tp_size * rank)].size);
  const std::size_t received = static_cast<std::size_t>((gtp_size_ - 1) * parameter.shard_elements()) * wire;
  received_size_ = base::align_up(received);
  received_bytes_ += static_cast<std::int64_t>(received);
}

base::Fence Reducer::sum_over_tp(const ShardedParameter& parameter, comm::Communicator& tp, std::byte* staging,
                                 const base::Fence& written) const {
  if (!over_tp_) return written;
  tp.lane().wait(written);
  return over_tp_->run(tp, staging, staging + gradient_bytes_, parameter.types.accumulator);
}

// Owners get their rows; where every rank keeps the whole parameter, each is an owner of all.
void Reducer::add_messages(const ShardedParameter& parameter, const std::byte* wire, std::byte* received,
                           std::vector<comm::Send>& sends, std::vector<comm::Receive>& receives) const {
  const std::size_t element = base::size_of(parameter.types.wire);
  const std::size_t shard = static_cast<std::size_t>(parameter.shard_elements()) * element;
  std::size_t at = 0;
  for (int rank = 0; rank < gtp_size_; ++rank) {
    const std::size_t bytes = static_cast<std::size_t>(owned_[static_cast<std::size_t>(rank)]) * element;
    if (rank != gtp_rank_) {
      sends.push_back({rank, wire + (parameter.spec.sharded ? at : 0), bytes});
      receives.push_back({rank, received, shard});
      received += shard;
    }
    at += bytes;
  }
}

void Reducer::add_to_main_grad(ShardedParameter& parameter, const std::byte* wire, const std::byte* received,
                               bool accumulate) const {
  const std::size_t element = base::size_of(parameter.types.wire);
  std::vector<const void*> parts;
  std::size_t own = 0;  // where this rank's part begins in the home part
  for (int rank = 0; rank < gtp_rank_; ++rank) own += static_cast<std::size_t>(owned_[static_cast<std::size_t>(rank)]);
  for (int rank = 0; rank < gtp_size_; ++rank) {
    if (rank == gtp_rank_) {
      parts.push_back(wire + (parameter.spec.sharded ? own * element : 0));
      continue;
    }
    parts.push_back(received);
    received += static_cast<std::size_t>(parameter.shard_elements()) * element;
  }
  comm::ordered_sum(parameter.main_grad.data(), parameter.types.accumulator, accumulate, parts, parameter.types.wire,
                    parameter.shard_elements());
}

base::Fence reduce(std::span<Reducing> members, Parallel& parallel, const base::Fence& written,
                   std::span<std::byte> poisoned) {
  comm::Communicator& gtp = *parallel.gtp_reduce;
  base::Lane& lane = gtp.lane();
  lane.wait(written);
  std::vector<comm::Send> sends;
  std::vector<comm::Receive> receives;
  struct Sum {
    Reducing member;
    const std::byte* wire;
    bool accumulate;
  };
  std::vector<Sum> sums;
  for (const Reducing& member : members) {
    const Reducer& reducer = *member.reducer;
    const ParameterTypes types = member.parameter->types;
    const std::byte* home = member.staging + (reducer.over_tp_ ? reducer.gradient_bytes_ : 0);
    lane.wait(reducer.sum_over_tp(*member.parameter, *parallel.tp_reduce, member.staging, written));
    const std::byte* wire = home;
    if (types.wire != types.accumulator) {
      wire = member.scratch;
      lane.run([=, count = reducer.home_elements_] {
        comm::cast(home, types.accumulator, member.scratch, types.wire, count);
      });
    }
    reducer.add_messages(*member.parameter, wire, member.scratch + reducer.rounded_bytes_, sends, receives);
    sums.push_back({member, wire, std::exchange(member.parameter->main_grad_written, true)});
  }
  if (gtp.size() > 1) gtp.exchange(std::move(sends), std::move(receives));
  lane.run([sums = std::move(sums), poisoned] {
    for (const Sum& sum : sums) {
      const Reducer& reducer = *sum.member.reducer;
      reducer.add_to_main_grad(*sum.member.parameter, sum.wire, sum.member.scratch + reducer.rounded_bytes_,
                               sum.accumulate);
    }
    if (!poisoned.empty()) std::memset(poisoned.data(), 0xFF, poisoned.size());
  });
  return lane.record();
}

}  // namespace tessera::shard
